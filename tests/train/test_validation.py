"""Validation: the same rows, corrupted in the same way, each time and in every run."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from electrakit import presets
from electrakit.data.corruptions import corrupted_rows
from electrakit.objective.build import build_objective
from electrakit.objective.output import exact_auc
from electrakit.train.distributed import ProcessGroup
from electrakit.train.validation import FixedCorruptions, Validation

SPECIAL = {"pad": 0, "cls": 2, "sep": 3, "mask": 4}
GROUP = ProcessGroup(torch.device("cpu"))


def compute(objective, micro_batch):
    return objective(micro_batch.ids, micro_batch.draws)


def config(shards, **changes):
    return presets.tiny(data=shards, vocab_size=120, length=32, valid_rows=16, **{"micro_batch": 16, **changes})


def test_metrics_repeat_whatever_the_seed_and_the_micro_batch(shards):
    objective = build_objective(config(shards), SPECIAL).train()
    first = Validation(config(shards), GROUP)(objective, compute)
    assert Validation(config(shards), GROUP)(objective, compute) == first
    assert Validation(config(shards, seed=9), GROUP)(objective, compute) == first
    assert Validation(config(shards, micro_batch=5), GROUP)(objective, compute) == pytest.approx(first, rel=1e-4)
    assert objective.training  # as it was


def test_metrics_are_those_of_one_batch_and_scikit_learns_auc(shards):
    objective = build_objective(config(shards), SPECIAL)
    validation = Validation(config(shards), GROUP)
    metrics = validation(objective, compute)
    [micro_batch] = validation.prefetch.read(0)
    with torch.no_grad():
        output = objective.eval()(micro_batch.ids, micro_batch.draws)
    for name in ("loss", "mlm_loss", "disc_loss", "gen_acc", "disc_acc", "replaced_rate", "sampled_acc"):
        assert metrics[name] == pytest.approx(getattr(output, name).item(), rel=1e-5), name
    seen = output.is_scored
    assert metrics["disc_auc"] == pytest.approx(
        roc_auc_score(output.disc_labels[seen], output.disc_logits[seen]), abs=1e-3
    )


def corruptions(shards, objective, **changes):
    return FixedCorruptions(config(shards, **changes), GROUP)(objective)


@pytest.mark.parametrize("preset", ["tiny", "modern_tiny"])
def test_auc_of_fixed_corruptions_is_scikit_learns(shards, preset):
    settings = getattr(presets, preset)(data=shards, vocab_size=120, length=32, valid_rows=16, micro_batch=5)
    objective = build_objective(settings, SPECIAL).train()
    metrics = FixedCorruptions(settings, GROUP)(objective)
    assert objective.training  # as it was
    for way in ("frequency", "neighbours", "swapped"):
        ids, is_changed, is_scored = map(torch.from_numpy, corrupted_rows(shards, 16)[way])
        with torch.no_grad():
            logits = objective.eval().discriminator(ids)
        assert metrics.pop(f"auc_{way}") == pytest.approx(roc_auc_score(is_changed[is_scored], logits[is_scored]))
    assert not metrics


def test_fixed_corruptions_do_not_depend_on_seed_or_micro_batch(shards):
    objective = build_objective(config(shards), SPECIAL)
    first = corruptions(shards, objective)
    assert corruptions(shards, objective, seed=9) == first
    assert corruptions(shards, objective, micro_batch=3) == pytest.approx(first)


def test_objectives_that_predict_tokens_are_not_asked_about_corruptions(shards):
    class Own(torch.nn.Module):
        pass

    assert corruptions(shards, Own()) == {}
    for settings in (
        config(shards, objective={"kind": "mlm"}, generator=None),
        config(shards, objective={"kind": "replace_mlm"}),
    ):
        assert FixedCorruptions(settings, GROUP)(build_objective(settings, SPECIAL)) == {}
    settings = config(shards, objective={"kind": "all_tokens_mlm"})
    assert len(FixedCorruptions(settings, GROUP)(build_objective(settings, SPECIAL))) == 3


def test_exact_auc_is_scikit_learns_with_ties():
    random = torch.Generator().manual_seed(0)
    scores = torch.randint(-5, 5, (200,), generator=random).float()
    labels = torch.rand(200, generator=random) < 0.3
    assert exact_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))


def test_without_a_valid_split_there_are_no_metrics(shards, tmp_path):
    import electrakit as ek

    text = shards.parent / "corpus.txt"
    other = ek.prepare([text], tokenizer=shards / "tokenizer", length=32, valid=0.0, out=tmp_path / "x", workers=1)
    objective = build_objective(config(other), SPECIAL)
    assert Validation(config(other), GROUP)(objective, compute) == {}
    assert corruptions(other, objective) == {}

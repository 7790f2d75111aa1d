"""Validation: the same rows, corrupted in the same way, each time and in every run."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from electrakit import presets
from electrakit.objective.build import build_objective
from electrakit.train.distributed import ProcessGroup
from electrakit.train.validation import Validation

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


def test_without_a_valid_split_there_are_no_metrics(shards, tmp_path):
    import electrakit as ek

    text = shards.parent / "corpus.txt"
    other = ek.prepare([text], tokenizer=shards / "tokenizer", length=32, valid=0.0, out=tmp_path / "x", workers=1)
    assert Validation(config(other), GROUP)(build_objective(config(other), SPECIAL), compute) == {}

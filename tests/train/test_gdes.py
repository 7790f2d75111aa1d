"""Runs whose discriminator reads the generator's words plus a difference: resumed, exported, continued, on several processes."""

import pytest
import torch
from safetensors.torch import load_file

import electrakit as ek
from electrakit import pretrain
from electrakit.common.errors import UserError
from electrakit.data.counts import count_pairs
from electrakit.measure.open import open_networks
from electrakit.model.counts import count_parameters
from electrakit.runs.settings import read_config
from electrakit.train.word_vectors import WINDOW, word_vectors
from tests.helpers.runs import assert_same, begun
from tests.helpers.torchrun import NO_DROPOUT, finished, torchrun

GDES = {"share": "gdes", "precision": "fp32"}
DELTA = "discriminator.body.embeddings.word.delta"
TABLE = "generator.body.embeddings.word.weight"


def test_a_run_that_stops_and_resumes_ends_with_the_same_bits(tiny):
    changes = {"objective": {"correct_weight": 1.0}, "optim": {"name": "muon", "warmup_steps": 2}}
    settings = {**GDES, "steps": 4, **changes}
    whole = pretrain(tiny("whole", **settings))
    pretrain(tiny("parts", **settings), stop_after=2)
    assert_same(pretrain(tiny("parts", **settings)), whole)
    saved = load_file(whole.checkpoint / "model.safetensors")
    assert saved[DELTA].any()
    assert sum(tensor.numel() for tensor in saved.values()) == count_parameters(read_config(whole.path).settings).total


@pytest.mark.parametrize("preset", ["modern_tiny", "alectra_small"])
def test_the_exported_discriminator_has_the_sum_and_the_generator_its_own_table(tiny, tmp_path, preset):
    small = {"num_layers": 1, "hidden_size": 16, "ffn_size": 16, "num_heads": 1}
    sizes = {"discriminator": small, "share": "gdes"} if preset == "alectra_small" else GDES
    run = pretrain(tiny("run", preset, steps=2, **sizes))
    saved = load_file(run.checkpoint / "model.safetensors")
    delta = next(tensor for name, tensor in saved.items() if name.endswith(".delta"))
    is_table = ("generator.body.embeddings.word.weight", "generator.model.albert.embeddings.word_embeddings.weight")
    table = next(saved[name] for name in is_table if name in saved)
    ek.export(run, tmp_path / "hf")
    for place in (tmp_path / "hf", run.path):
        networks = {network.name: network.adapter.model for network in open_networks(place)}
        words = {name: model.get_input_embeddings().weight for name, model in networks.items()}
        assert torch.equal(words["discriminator"], table + delta) and torch.equal(words["generator"], table)
    assert delta.any()


def test_released_weights_compute_what_they_did(tiny):
    first = pretrain(tiny("first", share="nothing", steps=3)).checkpoint
    (old,) = (one for one in open_networks(first) if one.name == "discriminator")
    ids = torch.tensor([[2, 20, 50, 30, 3]])
    expected = old.adapter.eval()(ids)
    both = {"init_discriminator": str(first / "discriminator"), "init_generator": str(first / "generator")}
    objective = begun(tiny("both", **GDES, **both)).eval()
    torch.testing.assert_close(objective.discriminator(ids), expected)
    assert objective.discriminator.body.embeddings.word.delta.abs().max() > 1e-3
    words = load_file(first / "model.safetensors")
    assert torch.equal(objective.generator.body.embeddings.word.weight, words[TABLE])
    # Alone, the discriminator's words are the generator's first ones, as in the other ways of sharing.
    objective = begun(tiny("one", **GDES, init_discriminator=both["init_discriminator"])).eval()
    torch.testing.assert_close(objective.discriminator(ids), expected)
    assert not objective.discriminator.body.embeddings.word.delta.any()


def test_counted_vectors_are_in_the_generators_table(tiny, shards):
    objective = begun(tiny("run", **GDES, init_embeddings="counts"))
    vectors, is_known = word_vectors(count_pairs(shards, range(1, WINDOW + 1)), 32)
    table = objective.discriminator.body.embeddings.word
    assert table.generator_table is objective.generator.body.embeddings.word.weight and not table.delta.any()
    torch.testing.assert_close(table.weight[is_known], vectors[is_known] * 0.02)


def test_heads_that_begin_at_neighbours_find_their_constant_in_both_tables(tiny):
    objective = begun(tiny("run", "modern_tiny", **GDES, init_attention="neighbours"))
    words = [network.body.embeddings.word.weight for network in (objective.generator, objective.discriminator)]
    assert torch.equal(*words) and len(words[0][:, -1].unique()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"preset": "modern_tiny", "generator": {"hidden_size": 16, "embedding_size": 16, "num_heads": 1}},
            "make them equal or use share='nothing'",
        ),
        (
            {"preset": "alectra_small", "objective": {"kind": "replace_mlm"}},
            "uses its word table in an output layer too",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(tiny, changes, message):
    with pytest.raises(UserError, match=message):
        tiny("run", share="gdes", **changes)


@pytest.mark.long
@pytest.mark.parametrize("fsdp", [False, True])
def test_two_processes_train_deberta_v3s_recipe_as_one(tiny, fsdp):
    """The deberta body, GDES, and gradients that are clipped by network."""
    size = {"num_layers": 2, "hidden_size": 32, "embedding_size": 32, "ffn_size": 64, "num_heads": 2, **NO_DROPOUT}
    settings = {"preset": "deberta_mini", "discriminator": size, "generator": {**size, "num_layers": 1}, "steps": 6}
    one = pretrain(tiny("one", **settings))
    config = tiny("two", **settings, fsdp=fsdp)
    assert config.share == "gdes" and config.optim.decoupled and config.optim.max_grad_norm
    finished(torchrun(config))
    ours, theirs = (
        load_file(run / "checkpoints" / "step_0000006" / "model.safetensors") for run in (one.path, config.run)
    )
    assert ours.keys() == theirs.keys() and ours[DELTA].any()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=2e-5, msg=name)

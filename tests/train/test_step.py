"""The loss of a step is a mean over its tokens; and a step never waits for its device."""

import contextlib

import pytest
import torch

from electrakit import Batches, presets
from electrakit.objective.build import build_objective
from electrakit.train.distributed import ProcessGroup
from electrakit.train.loop import mask_all, share_of_loss, train_step
from electrakit.train.prefetch import Prefetch
from electrakit.train.state import TrainState

SPECIAL = {"pad": 0, "cls": 2, "sep": 3, "mask": 4}
GROUP = ProcessGroup(torch.device("cpu"))


@pytest.mark.parametrize("kind", ["electra", "mlm", "replace_mlm", "all_tokens_mlm"])
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("loss_on", ["all", "masked"])
def test_counts_are_those_that_the_objective_divides_by(shards, kind, official, loss_on):
    changes = {"generator": None} if kind == "mlm" else {}
    objective = {"kind": kind, "official": official, "loss_on": loss_on}
    config = presets.tiny(vocab_size=120, length=32, objective=objective, **changes)
    objective = build_objective(config, SPECIAL).eval()
    micro_batches, totals = mask_all(Prefetch(Batches(shards, 8, micro_batch=4), 0, GROUP).read(0), objective, GROUP)
    assert torch.equal(totals, sum(micro_batch.draws.num_tokens for micro_batch in micro_batches).double().clamp(min=1))
    for micro_batch in micro_batches:
        output = objective(micro_batch.ids, micro_batch.draws)
        num_chosen, num_scored = output.num_tokens.tolist()
        assert num_chosen == output.counts.sum()
        if kind == "replace_mlm":  # a position that was chosen twice is guessed twice
            assert num_scored == output.counts.sum()
        elif output.is_scored is not None:
            assert num_scored == output.is_scored.sum()


@pytest.mark.parametrize(
    "preset", ["tiny", "electra_15", "mlm_small", "replace_mlm", "all_tokens_mlm", "electric_small"]
)
def test_micro_batches_add_up_to_the_loss_of_the_batch(shards, preset):
    config = getattr(presets, preset)(vocab_size=120, length=32)
    objective = build_objective(config, SPECIAL).eval()
    micro_batches, totals = mask_all(Prefetch(Batches(shards, 8, micro_batch=3), 0, GROUP).read(0), objective, GROUP)
    parts = [
        share_of_loss(
            objective(micro_batch.ids, micro_batch.draws), micro_batch, totals, objective, micro_batch.num_rows / 8
        )[0]
        for micro_batch in micro_batches
    ]
    [batch] = Prefetch(Batches(shards, 8), 0, GROUP).read(0)
    expected = objective(batch.ids, batch.draws)
    assert sum(parts).item() == pytest.approx(expected.loss.item(), rel=1e-5)
    [alone], totals = mask_all([batch], objective, GROUP)
    assert alone is batch and totals is None
    assert share_of_loss(expected, batch, None, objective, 1.0)[0].item() == expected.loss.item()


def test_borrowed_rows_of_an_empty_micro_batch_do_not_count(shards):
    objective = build_objective(presets.tiny(vocab_size=120, length=32), SPECIAL)
    [batch] = Prefetch(Batches(shards, 4), 0, GROUP).read(0)
    borrowed = batch._replace(num_rows=0)
    (masked, empty), totals = mask_all([batch, borrowed], objective, GROUP)
    assert totals.tolist() == masked.draws.num_tokens.tolist()
    loss, shares = share_of_loss(objective(empty.ids, empty.draws), empty, totals, objective, 0.0)
    assert loss.item() == 0 and [share.item() for share in shares.values()] == [0, 0, 0]


def test_a_forward_pass_is_the_same_with_masks_that_were_made_before(shards):
    objective = build_objective(presets.tiny(vocab_size=120, length=32), SPECIAL).eval()
    [batch] = Prefetch(Batches(shards, 8), 0, GROUP).read(0)
    at_once, before = objective(batch.ids, batch.draws), objective(batch.ids, objective.mask(batch.ids, batch.draws))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(at_once, before, strict=True))


def test_a_users_subclass_may_have_another_loss(shards):
    objective = build_objective(presets.tiny(vocab_size=120), SPECIAL)

    class Mine(type(objective)):
        pass

    assert objective.counts_tokens
    objective.__class__ = Mine
    assert not objective.counts_tokens
    micro_batches = Prefetch(Batches(shards, 8, micro_batch=4), 0, GROUP).read(0)
    assert mask_all(micro_batches, objective, GROUP) == (micro_batches, None)


SMALL = {"num_layers": 1, "hidden_size": 32, "ffn_size": 32, "num_heads": 1, "embedding_size": 32}
SEPARATE = {"share": "nothing", "generator": SMALL, "discriminator": SMALL, "optim": {"decoupled": True}}


@pytest.mark.parametrize(
    "settings", [{}, SEPARATE, {**SEPARATE, "objective": {"generator_steps": 2}}], ids=["joint", "decoupled", "stages"]
)
def test_a_step_keeps_all_on_its_device_and_reads_nothing(tiny, monkeypatch, settings):
    """As on a GPU: a tensor of the meta device mixes with no other and has no value to read."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which meta does not have
    monkeypatch.setattr(Prefetch, "to_device", lambda self, tensor: tensor.to(self.device))
    config = tiny("run", **settings)
    config.run.mkdir()
    with contextlib.closing(TrainState(config, None, ProcessGroup(torch.device("meta")))) as state:
        for step in range(4):
            state.progress.step = step
            train_step(state)

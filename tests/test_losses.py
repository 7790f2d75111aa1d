"""The loss of a step is a mean over its tokens."""

import pytest
import torch

from electrakit import Batches, presets
from electrakit.objective.build import build_objective
from electrakit.train.distributed import Team
from electrakit.train.feed import Feed, Piece
from electrakit.train.losses import count_tokens, has_tokens, share_of_loss, shares_of

SPECIAL = {"pad": 0, "cls": 2, "sep": 3, "mask": 4}
TEAM = Team(torch.device("cpu"))


@pytest.mark.parametrize("kind", ["electra", "mlm", "replace_mlm", "all_tokens_mlm"])
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("loss_on", ["all", "masked"])
def test_counts_are_those_that_the_objective_divides_by(shards, kind, official, loss_on):
    changes = {"generator": None} if kind == "mlm" else {}
    objective = {"kind": kind, "official": official, "loss_on": loss_on}
    config = presets.tiny(vocab_size=120, length=32, objective=objective, **changes)
    objective = build_objective(config, SPECIAL).eval()
    for piece in Feed(Batches(shards, 8, micro_batch=4), 0, TEAM).read(0):
        output = objective(piece.ids, piece.keys)
        num_chosen, num_scored = count_tokens(objective, piece).tolist()
        assert num_chosen == output.counts.sum()
        if kind == "replace_mlm":  # a position that was chosen twice is guessed twice
            assert num_scored == output.counts.sum()
        elif output.is_scored is not None:
            assert num_scored == output.is_scored.sum()


@pytest.mark.parametrize("preset", ["tiny", "electra_15", "mlm_small", "replace_mlm", "all_tokens_mlm"])
def test_pieces_add_up_to_the_loss_of_the_whole(shards, preset):
    config = getattr(presets, preset)(vocab_size=120, length=32)
    objective = build_objective(config, SPECIAL).eval()
    pieces = Feed(Batches(shards, 8, micro_batch=3), 0, TEAM).read(0)
    [whole] = Feed(Batches(shards, 8), 0, TEAM).read(0)
    shares = shares_of(pieces, objective, 8, TEAM)
    parts = [
        share_of_loss(objective(piece.ids, piece.keys), share, objective)
        for piece, share in zip(pieces, shares, strict=True)
    ]
    expected = objective(whole.ids, whole.keys).loss
    assert sum(parts).item() == pytest.approx(expected.item(), rel=1e-5)
    [share] = shares_of([whole], objective, 8, TEAM)
    assert share_of_loss(objective(whole.ids, whole.keys), share, objective).item() == pytest.approx(
        expected.item(), rel=1e-6
    )


def test_rows_that_are_nobodys_do_not_count(shards):
    objective = build_objective(presets.tiny(vocab_size=120, length=32), SPECIAL)
    [piece] = Feed(Batches(shards, 4), 0, TEAM).read(0)
    assert count_tokens(objective, Piece(piece.ids, piece.keys, 0, True)).tolist() == [0, 0]


def test_a_subclass_is_somebodys_own():
    class Mine(type(build_objective(presets.tiny(vocab_size=120), SPECIAL))):
        pass

    objective = build_objective(presets.tiny(vocab_size=120), SPECIAL)
    assert has_tokens(objective)
    objective.__class__ = Mine
    assert not has_tokens(objective)

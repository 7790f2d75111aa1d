"""Micro-batches: every row of a step once, with its own key, whatever the pieces and processes."""

import numpy as np
import pytest
import torch

from electrakit import Batches
from electrakit.objective.randomness import row_keys
from electrakit.train.distributed import Team
from electrakit.train.feed import Feed

CPU = torch.device("cpu")


def feed(shards, batch_size: int, micro_batch: int, rank: int = 0, size: int = 1) -> Feed:
    batches = Batches(shards, batch_size, rank=rank, world_size=size, micro_batch=micro_batch)
    return Feed(batches, 7, Team(CPU, rank, size))


@pytest.mark.parametrize(("batch_size", "micro_batch", "size"), [(8, 8, 1), (8, 3, 1), (9, 2, 2), (7, 1, 2), (5, 1, 3)])
def test_pieces_are_the_rows_of_the_step_in_order_each_with_its_key(shards, batch_size, micro_batch, size):
    whole = Batches(shards, batch_size)
    for step in (0, 3):
        pieces = [
            piece for rank in range(size) for piece in feed(shards, batch_size, micro_batch, rank, size).read(step)
        ]
        real = [piece for piece in pieces if piece.num_rows]
        np.testing.assert_array_equal(torch.cat([piece.ids for piece in real]), whole(step))
        keys = row_keys(7, step, whole.sample_numbers(step))
        assert torch.equal(torch.cat([piece.keys for piece in real]), keys)
        counts = [len(feed(shards, batch_size, micro_batch, rank, size).read(step)) for rank in range(size)]
        assert len(set(counts)) == 1  # else one process would wait for the others for ever
        assert all(len(piece.ids) for piece in pieces)  # a piece without rows of its own still has something to compute


def test_reading_ahead_gives_what_reading_gives_also_after_a_jump(shards):
    one, other = feed(shards, 8, 4), feed(shards, 8, 4)
    for step in (0, 1, 2, 7, 3, 4):
        for ahead, plain in zip(one.pieces(step), other.read(step), strict=True):
            assert torch.equal(ahead.ids, plain.ids) and torch.equal(ahead.keys, plain.keys)
    one.close()


def test_the_last_piece_is_known(shards):
    assert [piece.is_last for piece in feed(shards, 8, 3).read(0)] == [False, False, True]

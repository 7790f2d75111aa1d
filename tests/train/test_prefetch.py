"""Micro-batches: every row of a step once, with its own key, whatever the micro-batches and ranks."""

import numpy as np
import pytest
import torch

from electrakit import Batches
from electrakit.objective.randomness import row_keys
from electrakit.train.distributed import ProcessGroup
from electrakit.train.prefetch import Prefetch

CPU = torch.device("cpu")


def prefetch(shards, batch_size: int, micro_batch: int, rank: int = 0, size: int = 1) -> Prefetch:
    batches = Batches(shards, batch_size, rank=rank, world_size=size, micro_batch=micro_batch)
    return Prefetch(batches, 7, ProcessGroup(CPU, rank, size))


@pytest.mark.parametrize(("batch_size", "micro_batch", "size"), [(8, 8, 1), (8, 3, 1), (9, 2, 2), (7, 1, 2), (5, 1, 3)])
def test_micro_batches_are_the_rows_of_the_step_in_order_each_with_its_key(shards, batch_size, micro_batch, size):
    whole = Batches(shards, batch_size)
    for step in (0, 3):
        of_ranks = [prefetch(shards, batch_size, micro_batch, rank, size).read(step) for rank in range(size)]
        every = [each for of_rank in of_ranks for each in of_rank]
        real = [each for each in every if each.num_rows]
        np.testing.assert_array_equal(torch.cat([each.ids for each in real]), whole(step))
        assert torch.equal(torch.cat([each.draws for each in real]), row_keys(7, step, whole.sample_numbers(step)))
        assert len(set(map(len, of_ranks))) == 1  # else one rank would wait for the others forever
        assert all(len(each.ids) for each in every)  # a micro-batch without rows still has something to compute


def test_reading_ahead_gives_what_reading_gives_also_after_a_jump(shards):
    one, other = prefetch(shards, 8, 4), prefetch(shards, 8, 4)
    for step in (0, 1, 2, 7, 3, 4):
        for ahead, plain in zip(one.micro_batches(step), other.read(step), strict=True):
            assert torch.equal(ahead.ids, plain.ids) and torch.equal(ahead.draws, plain.draws)
    one.close()


def test_the_last_micro_batch_is_known(shards):
    assert [each.is_last for each in prefetch(shards, 8, 3).read(0)] == [False, False, True]

"""Learning rates over a run."""

import numpy as np
import pytest

from electrakit.config.optim import OptimConfig
from electrakit.train.schedule import scheduled_lr

STEPS, WARMUP = 100, 10


def rates(schedule: str, **changes: int) -> np.ndarray:
    optim = OptimConfig(lr=2.0, schedule=schedule, warmup_steps=WARMUP, **changes)
    return np.array([scheduled_lr(optim, step, STEPS) for step in range(STEPS)])


def test_official_multiplies_warmup_and_decay_and_counts_from_0():
    steps = np.arange(STEPS)
    np.testing.assert_allclose(rates("official"), 2.0 * (1 - steps / STEPS) * np.minimum(1, steps / WARMUP))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "cosine_restarts", "constant"])
def test_others_rise_to_the_highest_rate_and_no_step_is_wasted(schedule):
    found = rates(schedule)
    np.testing.assert_allclose(found[:WARMUP], 2.0 * np.arange(1, WARMUP + 1) / WARMUP)
    assert found[WARMUP] == 2.0
    assert found.min() > 0


def test_linear_and_cosine_fall_to_nothing_at_the_end():
    after = np.arange(STEPS - WARMUP) / (STEPS - WARMUP)
    np.testing.assert_allclose(rates("linear")[WARMUP:], 2.0 * (1 - after))
    np.testing.assert_allclose(rates("cosine")[WARMUP:], 1 + np.cos(np.pi * after))


def test_restarts_begin_each_cycle_at_the_top():
    found = rates("cosine_restarts", num_cycles=3)[WARMUP:]
    tops = np.flatnonzero(found == 2.0)
    np.testing.assert_array_equal(tops, [0, 30, 60])


def test_a_run_by_the_clock_decays_with_the_clock_whatever_its_steps():
    optim = OptimConfig(lr=2.0, schedule="linear", warmup_steps=0)
    assert scheduled_lr(optim, 7, num_steps=10**6, budget_used=0.75) == pytest.approx(0.5)
    assert scheduled_lr(optim, 7, num_steps=10**6, budget_used=1.0) == 0
    official = OptimConfig(lr=2.0, warmup_steps=10)
    assert scheduled_lr(official, 5, num_steps=10**6, budget_used=0.02) == pytest.approx(0.98)


@pytest.mark.parametrize("schedule", ["official", "linear", "constant"])
def test_with_a_budget_the_warmup_ends_after_a_tenth_of_it_even_on_a_slow_machine(schedule):
    optim = OptimConfig(lr=2.0, schedule=schedule, warmup_steps=300)
    after = OptimConfig(lr=2.0, schedule=schedule, warmup_steps=0)
    for step, used in ((14, 0.1), (70, 0.5), (130, 0.93)):
        assert scheduled_lr(optim, step, 3000, used) == pytest.approx(scheduled_lr(after, step, 3000, used))
    assert 0 < scheduled_lr(optim, 7, 3000, 0.05) < scheduled_lr(optim, 14, 3000, 0.1)

"""The learning rate of each step: warm-up, then one of five schedules."""

import math

from electrakit.common.official_adam import official_lr
from electrakit.config.optim import OptimConfig

LONGEST_WARMUP = 0.1  # of a time budget: a slow machine would spend all of it on the warm-up


def scheduled_lr(optim: OptimConfig, step: int, num_steps: int, budget_used: float | None = None) -> float:
    """The learning rate of a step, counted from 0. `budget_used`: of a time budget, from 0 to 1; None without one.

    With a budget the warm-up ends after a tenth of it at the latest, whatever `warmup_steps` is.
    """
    by_clock = 0.0 if budget_used is None else min(1.0, budget_used / LONGEST_WARMUP)
    if optim.schedule == "official":
        place = step / num_steps if budget_used is None else budget_used
        by_step = official_lr(optim.lr, step, optim.warmup_steps, place)
        return max(by_step, optim.lr * (1 - place) * by_clock)
    warmup = max(by_clock, min(1.0, (step + 1) / max(1, optim.warmup_steps)))
    if budget_used is None:
        place = max(0, step - optim.warmup_steps) / max(1, num_steps - optim.warmup_steps)
    else:  # how long the warm-up will take is not known
        place = budget_used if warmup == 1.0 else 0.0
    return optim.lr * warmup * decay(optim, min(1.0, place))


def decay(optim: OptimConfig, place: float) -> float:
    """The factor of the highest rate at a place from 0, the end of the warm-up, to 1, the end of the run."""
    if optim.schedule == "linear":
        return 1 - place
    if optim.schedule == "cosine":
        return (1 + math.cos(math.pi * place)) / 2
    if optim.schedule == "cosine_restarts":
        return (1 + math.cos(math.pi * (place * optim.num_cycles % 1.0))) / 2
    return 1.0

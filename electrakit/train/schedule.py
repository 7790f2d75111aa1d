"""The learning rate of each step: warm-up, then one of five schedules."""

import math

from electrakit.common.official_adam import official_lr
from electrakit.config.pretrain import OptimConfig


def scheduled_lr(optim: OptimConfig, step: int, num_steps: int, budget_used: float | None = None) -> float:
    """The learning rate of a step, counted from 0. `budget_used`: of a time budget, from 0 to 1; None without one."""
    if optim.schedule == "official":
        return official_lr(optim.lr, step, optim.warmup_steps, step / num_steps if budget_used is None else budget_used)
    warmup = min(1.0, (step + 1) / max(1, optim.warmup_steps))
    if budget_used is None:
        place = max(0, step - optim.warmup_steps) / max(1, num_steps - optim.warmup_steps)
    else:  # how long the warm-up will take is not known
        place = budget_used if step >= optim.warmup_steps else 0.0
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

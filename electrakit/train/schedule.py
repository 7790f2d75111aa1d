"""How far a run is in, the learning rate out."""

import math

from electrakit.pretrain_config import OptimConfig


def lr_at(optim: OptimConfig, step: int, num_steps: int, clock: float | None = None) -> float:
    """The learning rate of a step, counted from 0. `clock`: of a run with a time budget, the share of it that is gone."""
    if optim.schedule == "official":  # warm-up and decay multiply, and the first step does nothing
        gone = step / num_steps if clock is None else clock
        return optim.lr * (1 - gone) * min(1.0, step / max(1, optim.warmup_steps))
    warmup = min(1.0, (step + 1) / max(1, optim.warmup_steps))
    if clock is None:
        place = max(0, step - optim.warmup_steps) / max(1, num_steps - optim.warmup_steps)
    else:  # nobody knows how long the warm-up will take
        place = clock if step >= optim.warmup_steps else 0.0
    return optim.lr * warmup * decay(optim, min(1.0, place))


def decay(optim: OptimConfig, place: float) -> float:
    """What is left of the highest rate at a place from 0, the end of the warm-up, to 1, the end of the run."""
    if optim.schedule == "linear":
        return 1 - place
    if optim.schedule == "cosine":
        return (1 + math.cos(math.pi * place)) / 2
    if optim.schedule == "cosine_restarts":
        return (1 + math.cos(math.pi * (place * optim.num_cycles % 1.0))) / 2
    return 1.0

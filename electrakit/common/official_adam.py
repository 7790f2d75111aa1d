"""Adam and its learning rate as the official ELECTRA code has them, for pretraining and fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BETAS, EPS = (0.9, 0.999), 1e-6
# The official Adam corrects no bias. At this step count 1 - beta ** steps is 1, and float32 cannot count further.
NO_CORRECTION = 2.0**24


def allocate_state(adam: torch.optim.Optimizer, corrects_bias: bool) -> None:
    """Begin the averages of Adam or AdamW at 0; without bias correction, begin the count of steps where there is none."""
    import torch

    for group in adam.param_groups:
        for parameter in group["params"]:
            adam.state[parameter] = {
                "step": torch.tensor(0.0 if corrects_bias else NO_CORRECTION, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def official_lr(lr: float, step: int, num_warmup_steps: int, fraction_done: float) -> float:
    """Of a step, counted from 0. Warm-up and linear decay multiply, and the first step does nothing."""
    return lr * (1 - fraction_done) * min(1.0, step / max(1, num_warmup_steps))

"""Adam's settings and learning rate in the official ELECTRA code, for pretraining and fine-tuning."""

BETAS, EPS = (0.9, 0.999), 1e-6


def official_lr(lr: float, step: int, num_warmup_steps: int, fraction_done: float) -> float:
    """Of a step, counted from 0. Warm-up and linear decay multiply, and the first step does nothing."""
    return lr * (1 - fraction_done) * min(1.0, step / max(1, num_warmup_steps))

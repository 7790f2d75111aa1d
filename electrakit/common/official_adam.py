"""The learning rate of the official ELECTRA code, for pretraining and fine-tuning."""


def official_lr(lr: float, step: int, num_warmup_steps: int, fraction_done: float) -> float:
    """Of a step, counted from 0. Warm-up and linear decay multiply, and the first step does nothing."""
    return lr * (1 - fraction_done) * min(1.0, step / max(1, num_warmup_steps))

"""AdamW with layer-wise learning rates (lower layers learn slower), and the official code's Adam."""

import re
from typing import Any

import torch
from torch import nn

from electrakit.common.official_adam import BETAS, EPS, allocate_state, official_lr
from electrakit.config.finetune import FinetuneSettings


def depth_of(name: str) -> int | None:
    """The depth of a parameter of a transformers encoder: 0 embeddings, 1 the first layer, ..., None above the layers."""
    number = re.search(r"\.(?:layers?|albert_layer_groups|h|block)\.(\d+)\.", name)
    if number:
        return int(number[1]) + 1
    return 0 if "embedding" in name else None


def layerwise_groups(classifier: nn.Module, settings: FinetuneSettings) -> list[dict[str, Any]]:
    """Every parameter once, with the factor of its learning rate. Matrices decay, biases and norms do not."""
    named = [(name, parameter) for name, parameter in classifier.named_parameters() if parameter.requires_grad]
    num_layers = max((depth_of(name) or 0 for name, _ in named), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        depth = depth_of(name)
        power = 0 if depth is None else num_layers + settings.top_layer_power - depth
        decay = settings.weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((settings.layer_decay**power, decay), []).append(parameter)
    return [
        {"params": parameters, "lr_factor": factor, "weight_decay": decay}
        for (factor, decay), parameters in groups.items()
    ]


def build_optimizer(classifier: nn.Module, settings: FinetuneSettings) -> torch.optim.AdamW:
    adam = torch.optim.AdamW(layerwise_groups(classifier, settings), lr=0.0, betas=BETAS, eps=EPS, fused=True)
    allocate_state(adam, corrects_bias=settings.adam == "corrected")
    return adam


def finetune_lr(settings: FinetuneSettings, step: int, num_steps: int) -> float:
    """The learning rate of a step, counted from 0."""
    num_warmup = max(1, round(settings.warmup * num_steps))
    if settings.adam == "official":
        return official_lr(settings.lr, step, num_warmup, step / num_steps)
    if step < num_warmup:
        return settings.lr * (step + 1) / num_warmup
    return settings.lr * (num_steps - step) / max(1, num_steps - num_warmup)


def set_lr(optimizer: torch.optim.Optimizer, settings: FinetuneSettings, step: int, num_steps: int) -> None:
    """Give each group its rate of a step."""
    lr = finetune_lr(settings, step, num_steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]

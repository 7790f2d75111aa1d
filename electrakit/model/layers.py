"""What both bodies are made of: rotary positions, the step before an output layer, and the first weights.

Shapes: B rows, T tokens, N heads of D numbers.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SIGMA = 0.02  # of the official initialisation: a truncated normal, cut at two sigma


def rotations(num_tokens: int, head_size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each (T, D). Computed, not stored: always float32, on any device."""
    exponents = torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    angles = torch.arange(num_tokens, device=device, dtype=torch.float32)[:, None] * (1.0 / base**exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + D/2) of the heads (B, N, T, D) by its position's angle."""
    cosine, sine = turn
    first, second = heads.float().chunk(2, dim=-1)
    turned = heads.float() * cosine + torch.cat([-second, first], dim=-1) * sine
    return turned.to(heads.dtype)


def run(layer: nn.Module, *inputs: Any, recompute: bool) -> Tensor:
    """A layer's output; with `recompute` its activations are not kept, but computed again in the backward pass."""
    return checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)


def head(dense: nn.Linear, norm: nn.Module) -> nn.Sequential:
    """What stands between the last hidden state and an output layer, in both bodies and for both networks."""
    return nn.Sequential(OrderedDict(dense=dense, activation=nn.GELU(), norm=norm))


@torch.no_grad()
def initialise(module: nn.Module, sigma: float = SIGMA) -> None:
    """Matrices from a truncated normal, the padding row like any other (as the official code); biases 0, norms 1."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            nn.init.trunc_normal_(parameter, std=sigma, a=-2 * sigma, b=2 * sigma)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

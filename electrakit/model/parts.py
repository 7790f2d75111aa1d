"""Building blocks of both bodies: RoPE, the prediction head, gradient checkpointing and weight initialisation."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

INITIALIZER_RANGE = 0.02  # of the official code: the standard deviation of a normal that is truncated at twice that

Rope = tuple[Tensor, Tensor]
"""Cosine and sine of each position's rotary angles, float32."""


def rope_tables(num_tokens: int, head_size: int, base: float, device: torch.device) -> Rope:
    """The angles of every position, each (T, D). Computed, not stored as buffers: always float32, on any device."""
    exponents = torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    angles = torch.arange(num_tokens, device=device, dtype=torch.float32)[:, None] * (1.0 / base**exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rope: Rope) -> Tensor:
    """Rotate each pair (i, i + D/2) of the heads (B, heads, T, D) by its position's angle."""
    cosine, sine = rope
    first, second = heads.float().chunk(2, dim=-1)
    rotated = heads.float() * cosine + torch.cat([-second, first], dim=-1) * sine
    return rotated.to(heads.dtype)


def gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """The hidden states (B, T, H) at positions (B, K): (B, K, H)."""
    return hidden.gather(1, positions[..., None].expand(-1, -1, hidden.size(-1)))


def run_layer(layer: nn.Module, *inputs: Any, recompute: bool) -> Tensor:
    """Call a layer; with `recompute` under gradient checkpointing."""
    return checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)


def prediction_head(dense: nn.Linear, norm: nn.Module) -> nn.Sequential:
    """The layers between the last hidden state and an output layer."""
    return nn.Sequential(OrderedDict(dense=dense, activation=nn.GELU(), norm=norm))


@torch.no_grad()
def initialise(module: nn.Module, std: float = INITIALIZER_RANGE) -> None:
    """Matrices from a truncated normal, the padding row too (as in the official code); biases 0, norms 1."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
        else:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

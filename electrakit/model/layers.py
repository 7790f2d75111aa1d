"""What both bodies are made of: attention to real tokens, the step before an output layer, and the first weights.

Shapes: B rows, T tokens, H hidden, N heads of D numbers.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SIGMA = 0.02  # of the official initialisation: a truncated normal, cut at two sigma


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The fused projection (B, T, 3H) as query, key and value, each (B, N, T, D)."""
    num_rows, num_tokens, width = qkv.shape
    heads = qkv.view(num_rows, num_tokens, 3, num_heads, width // (3 * num_heads))
    query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
    return query, key, value


def attend(query: Tensor, key: Tensor, value: Tensor, attended: Tensor, dropout: float) -> Tensor:
    """Attention to the keys that are `attended` (B, T): (B, T, H).

    The mask stays boolean and (B, 1, 1, T), never T x T (15 to 20 % slower in one CPU run), and is always there, padding or not: one
    graph for every batch. A row of nothing but padding gives zeros, not NaN.
    """
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attended[:, None, None], dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(2)


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

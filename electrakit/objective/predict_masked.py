"""A masked language model's predictions at the chosen positions: its loss, its accuracy, and samples."""

from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.model import kernels
from electrakit.model.layouts import PackedTokens
from electrakit.model.networks import Generator
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked
from electrakit.objective.output import ratio


class Predictions(NamedTuple):
    """Over the positions that count."""

    loss: Tensor
    accuracy: Tensor
    """How often the most likely token is the original."""
    sampled: Tensor | None
    """(B, K)"""


def predict_masked(
    model: nn.Module,
    masked: Masked,
    draws: Tensor | None = None,
    *,
    temperature: float = 1.0,
    without: tuple[int, ...] = (),
    not_correct: bool = False,
) -> Predictions:
    """Predict the originals at the chosen positions; with uniform numbers `draws` (B, K), also sample tokens there."""
    if not not_correct and has_kernel(model, masked.inputs):
        return predict_with_kernel(model, masked, draws, temperature, without)
    counts, originals = masked.counts, masked.originals
    logits = model(masked.inputs, masked.positions)  # (B, K, V)
    targets = originals.masked_fill(~counts, -100)  # cross_entropy's ignore_index
    total = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")
    with torch.no_grad():
        accuracy = ratio((logits.argmax(-1) == originals) & counts, counts)
        sampled = None
        if draws is not None:
            not_these = originals if not_correct else None
            sampled = corrupt.sample(logits, draws, temperature=temperature, without=without, not_these=not_these)
            sampled = torch.where(sampled < 0, originals, sampled)  # -1 for NaN, which the loss shows
    return Predictions(total / counts.sum().clamp(min=1), accuracy, sampled)


def has_kernel(model: nn.Module, ids: Tensor) -> TypeGuard[Generator]:
    """Only for our own generator without forward hooks, which the kernel would not call."""
    if type(model) is not Generator or model._forward_hooks or model._forward_pre_hooks:
        return False
    return model.can_use_kernels(ids)


def predict_with_kernel(
    model: Generator, masked: Masked, draws: Tensor | None, temperature: float, without: tuple[int, ...]
) -> Predictions:
    """The same, computed only at the M positions that count, in two passes over the logits (M, V)."""
    counts, originals = masked.counts, masked.originals
    tokens, hidden = model.encode(masked.inputs)
    assert isinstance(tokens, PackedTokens)
    chosen = model.head(tokens.gather_counted(hidden, masked.positions, counts))
    logits = F.linear(chosen, model.body.embeddings.word.weight)  # (M, V)
    targets = originals[counts]
    # The kernel always samples, which costs next to nothing.
    numbers = torch.zeros_like(targets, dtype=torch.float32) if draws is None else draws[counts].float()
    forbidden = torch.tensor(without, dtype=torch.int64)
    losses, best, found = kernels.Predict.apply(logits, model.output_bias, targets, numbers, forbidden, temperature)
    sampled = None if draws is None else originals.masked_scatter(counts, torch.where(found < 0, targets, found))
    return Predictions(losses.sum() / max(1, len(targets)), ratio(best == targets, counts), sampled)

"""Rows with hidden tokens in, a masked language model's guesses at them out: its loss, how often it is right, and samples."""

from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.model import kernels
from electrakit.model.encoder import Generator
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked
from electrakit.objective.output import ratio


class Guesses(NamedTuple):
    """Of the positions that count."""

    loss: Tensor
    accuracy: Tensor
    """How often the best guess is right."""
    sampled: Tensor | None
    """(B, K)"""


class Sampling(NamedTuple):
    """How tokens are sampled."""

    draws: Tensor  # (B, K): uniform numbers
    temperature: float
    without: tuple[int, ...]
    not_correct: bool


def guess(model: nn.Module, masked: Masked, sampling: Sampling | None = None) -> Guesses:
    """What the model says at the chosen positions."""
    if has_kernel(model, masked, sampling):
        return guess_by_kernel(model, masked, sampling)
    positions, counts, originals, shown = masked
    logits = model(shown, positions)  # (B, K, V)
    wanted = originals.masked_fill(~counts, -100)  # cross_entropy's ignore_index
    total = F.cross_entropy(logits.float().flatten(0, -2), wanted.flatten(), reduction="sum")
    with torch.no_grad():
        accuracy = ratio((logits.argmax(-1) == originals) & counts, counts)
        sampled = None
        if sampling is not None:
            sampled = corrupt.sample(
                logits,
                sampling.draws,
                temperature=sampling.temperature,
                without=sampling.without,
                not_these=originals if sampling.not_correct else None,
            )
            sampled = torch.where(sampled < 0, originals, sampled)  # of NaN: the loss says so
    return Guesses(total / counts.sum().clamp(min=1), accuracy, sampled)


def has_kernel(model: nn.Module, masked: Masked, sampling: Sampling | None) -> TypeGuard[Generator]:
    """Of our own generator, as it is: what somebody hung on to its forward pass would not be called."""
    if type(model) is not Generator or model._forward_hooks or model._forward_pre_hooks:
        return False
    return model.can_use_kernels(masked.shown) and not (sampling is not None and sampling.not_correct)


def guess_by_kernel(model: Generator, masked: Masked, sampling: Sampling | None) -> Guesses:
    """The same, computed where it counts only, in two passes over the logits (M, V)."""
    positions, counts, originals, shown = masked
    tokens, hidden = model.encode(shown)
    chosen = model.head(tokens.at_some(hidden, positions, counts))
    logits = F.linear(chosen, model.body.embeddings.word.weight)  # (M, V)
    targets = originals[counts]
    how = sampling or Sampling(
        torch.zeros_like(counts, dtype=torch.float32), 1.0, (), False
    )  # which costs next to nothing
    without = torch.tensor(how.without, dtype=torch.int64)
    losses, best, found = kernels.Guess.apply(
        logits, model.output_bias, targets, how.draws[counts].float(), without, how.temperature
    )
    sampled = None if sampling is None else originals.masked_scatter(counts, torch.where(found < 0, targets, found))
    return Guesses(losses.sum() / max(1, len(targets)), ratio(best == targets, counts), sampled)

"""A masked language model's predictions at the chosen positions: its loss, its accuracy, and samples."""

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from electrakit.model import kernels
from electrakit.model.layouts import PackedTokens, Tokens
from electrakit.model.networks import Generator
from electrakit.model.ngrams import NGrams
from electrakit.objective import corrupt
from electrakit.objective.masking import Masked
from electrakit.objective.output import ratio

MAX_LOGITS = 2**25
"""That `log_probabilities` holds at once: 128 MB."""


class Predictions(NamedTuple):
    """Over the positions that count."""

    loss: Tensor
    accuracy: Tensor
    """How often the most likely token is the original."""
    sampled: Tensor | None
    """(B, K)"""
    logits: Tensor | None = None
    """(B, K, V), if they were asked for."""


class Sampling(NamedTuple):
    """How tokens are sampled from the predictions."""

    draws: Tensor
    """(B, K): uniform numbers."""
    temperature: float | Tensor = 1.0
    without: tuple[int, ...] = ()
    """Never sampled."""
    not_correct: bool = False
    """Never sample the original token."""
    towards: Tensor | None = None
    """(V,): logits of the distribution that a temperature flattens to; by default the uniform one."""
    keeps_logits: bool = False
    """Return the logits, too."""


def predict_masked(
    model: nn.Module, masked: Masked, sampling: Sampling | None = None, ngrams: NGrams | None = None
) -> Predictions:
    """Predict the originals at the chosen positions. The model learns what is left over by `ngrams`: their logits are added to its own."""
    can_use_kernel = sampling is None or not (sampling.not_correct or sampling.keeps_logits)
    if can_use_kernel and has_kernel(model, masked.inputs):
        tokens, hidden = model.encode(masked.inputs)
        assert isinstance(tokens, PackedTokens)
        return predict_with_kernel(model, tokens, hidden, masked, sampling, ngrams)
    logits = model(masked.inputs, masked.positions)  # (B, K, V)
    if ngrams is not None:
        with torch.no_grad():
            prior = ngrams(masked.inputs, masked.positions, masked.originals)
        logits = logits + prior
    return predict(logits, masked, sampling)


def predict_from_states(model: Generator, tokens: Tokens, hidden: Tensor, masked: Masked) -> Predictions:
    """The same from hidden states that are computed already, by the model's head alone."""
    if isinstance(tokens, PackedTokens):
        return predict_with_kernel(model, tokens, hidden, masked)
    return predict(model.word_logits(tokens.gather(hidden, masked.positions)), masked)


def predict(logits: Tensor, masked: Masked, sampling: Sampling | None = None) -> Predictions:
    """From logits (B, K, V)."""
    counts, originals = masked.counts, masked.originals
    targets = originals.masked_fill(~counts, -100)  # cross_entropy's ignore_index
    total = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="sum")
    with torch.no_grad():
        accuracy = ratio((logits.argmax(-1) == originals) & counts, counts)
        sampled = None
        if sampling is not None:
            not_these = originals if sampling.not_correct else None
            sampled = corrupt.sample(
                logits,
                sampling.draws,
                temperature=sampling.temperature,
                without=sampling.without,
                not_these=not_these,
                towards=sampling.towards,
            )
            sampled = torch.where(sampled < 0, originals, sampled)  # -1 for NaN, which the loss shows
    kept = logits if sampling is not None and sampling.keeps_logits else None
    return Predictions(total / counts.sum().clamp(min=1), accuracy, sampled, kept)


def log_probabilities(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    vocab_size: int | None,
    max_logits: int = MAX_LOGITS,
) -> Tensor:
    """The softmax's log-probability of each target (B, T); 0 where it is -100: (B, T).

    A block of tokens at a time, and again in the backward pass, so that no (B, T, V) tensor is kept.
    """

    def of_block(hidden: Tensor, targets: Tensor) -> Tensor:
        return -F.cross_entropy(head(hidden).float(), targets, reduction="none")

    num_rows = max(1, max_logits // (vocab_size or 2**15))
    blocks = zip(hidden.flatten(0, 1).split(num_rows), targets.flatten().split(num_rows), strict=True)
    return torch.cat([checkpoint(of_block, *block, use_reentrant=False) for block in blocks]).view_as(targets)


def has_kernel(model: nn.Module, ids: Tensor) -> TypeGuard[Generator]:
    """Only for our own generator without forward hooks, which the kernel would not call."""
    if type(model) is not Generator or model._forward_hooks or model._forward_pre_hooks:
        return False
    return model.can_use_kernels(ids)


def predict_with_kernel(
    model: Generator,
    tokens: PackedTokens,
    hidden: Tensor,
    masked: Masked,
    sampling: Sampling | None = None,
    ngrams: NGrams | None = None,
) -> Predictions:
    """Computed only at the M positions that count, in two passes over the logits (M, V)."""
    chosen = model.head(tokens.gather_counted(hidden, masked.positions, masked.counts))
    logits = F.linear(chosen, model.body.embeddings.word.weight)  # (M, V)
    if ngrams is not None:
        prior = logits_by_counts(ngrams, masked).to(logits.dtype)
        logits = logits + F.pad(prior, (0, 0, 0, len(logits) - len(prior)))
    return call_kernel(logits, model.output_bias, masked, sampling)


def predict_by_counts(ngrams: NGrams, masked: Masked, sampling: Sampling) -> Predictions:
    """Without a network. The loss has no gradient."""
    if sampling.not_correct or not ngrams.can_use_kernels(masked.inputs):
        return predict(ngrams(masked.inputs, masked.positions, masked.originals), masked, sampling)
    logits = logits_by_counts(ngrams, masked)
    return call_kernel(logits, torch.zeros(logits.size(1)), masked, sampling)


@torch.no_grad()
def logits_by_counts(ngrams: NGrams, masked: Masked) -> Tensor:
    """At the positions that count: (M, V)."""
    counts = masked.counts
    rows = torch.arange(len(counts))[:, None].expand_as(counts)[counts]
    return ngrams.logits_at(masked.inputs, rows, masked.positions[counts], masked.originals[counts])


def call_kernel(logits: Tensor, bias: Tensor, masked: Masked, sampling: Sampling | None) -> Predictions:
    """From logits (M, V) at the positions that count; more rows are not read. The kernel always samples, which costs next to nothing."""
    counts, originals = masked.counts, masked.originals
    num_counted = int(counts.sum())
    to_logits = (0, len(logits) - num_counted)
    targets = F.pad(originals[counts], to_logits)
    numbers = torch.zeros(len(targets)) if sampling is None else F.pad(sampling.draws[counts].float(), to_logits)
    without = torch.tensor(() if sampling is None else sampling.without, dtype=torch.int64)
    temperature = 1.0 if sampling is None else float(sampling.temperature)
    towards = None if sampling is None else sampling.towards
    losses, best, found = kernels.Predict.apply(logits, bias, targets, numbers, without, temperature, towards)
    sampled = None if sampling is None else originals.masked_scatter(counts, torch.where(found < 0, targets, found))
    is_right = (best == targets)[:num_counted]
    return Predictions(losses[:num_counted].sum() / max(1, num_counted), ratio(is_right, counts), sampled)

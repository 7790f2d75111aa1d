"""Corrupts ids by uniform random numbers: choose positions, mask tokens, sample replacements, write them. Pure functions.

Shapes: B rows, T tokens, K chosen positions, V vocabulary. K is fixed, so that the step compiles as one graph: where a row needs fewer
positions, `counts` is False for the rest, and they change nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit.config.objective import max_chosen

BLOCK = 256
"""Probabilities that `sample` sums into one block, about sqrt(V): it finds the block first, then the token inside."""
MAX_LOGITS = 2**24
"""Logits that `sample` holds in fp32 at once: 64 MB."""
NUM_PASSES = 3
"""How often whole-word masking goes through the words that still fit."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of special tokens."""

    pad: int
    mask: int
    never_masked: tuple[int, ...] = ()
    """[CLS], [SEP] and the like. [PAD] and [MASK] need not be named."""
    sep: int | None = None
    """Segment B begins after it, where the models have segments."""

    @property
    def never_chosen(self) -> tuple[int, ...]:
        """Neither chosen nor used as a random token."""
        return tuple(sorted({self.pad, self.mask, *self.never_masked, *self.never_sampled}))

    @property
    def never_sampled(self) -> tuple[int, ...]:
        """Never written into a row: the networks read the padding and the segments from the ids."""
        return (self.pad,) if self.sep is None else tuple(sorted({self.pad, self.sep}))


def num_to_choose(attended: Tensor, rate: float) -> Tensor:
    """How many positions to choose in each row, by its real tokens, [CLS] and [SEP] included: (B, 1)."""
    num_real = attended.sum(-1, keepdim=True)
    return (num_real * rate).round().long().clamp(1, max_chosen(attended.size(-1), rate))


def can_be_chosen(ids: Tensor, attended: Tensor, special: SpecialTokens) -> Tensor:
    """(B, T) bool"""
    can_choose = attended
    for token in special.never_chosen:  # a handful: comparisons fuse, a table would need V
        if token != special.pad:
            can_choose = can_choose & (ids != token)
    return can_choose


# Choose


def choose_positions(
    ids: Tensor, attended: Tensor, special: SpecialTokens, rate: float, priority: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose about `rate` of each row's real tokens, no position twice: positions (B, K), and which of them count (B, K)."""
    can_choose = can_be_chosen(ids, attended, special)
    positions = _by_priority(priority.masked_fill(~can_choose, -1))[:, : max_chosen(ids.size(-1), rate)]
    counts = torch.arange(positions.size(-1), device=ids.device) < num_to_choose(attended, rate)
    return positions, counts & can_choose.gather(-1, positions)


def choose_with_replacement(
    ids: Tensor, attended: Tensor, special: SpecialTokens, rate: float, priority: Tensor
) -> tuple[Tensor, Tensor]:
    """The official code's choice: each time among all candidates, so that some are chosen twice. (B, K) and (B, K)."""
    can_choose = can_be_chosen(ids, attended, special)
    num_candidates = can_choose.sum(-1, keepdim=True)
    candidates = (~can_choose).long().argsort(dim=-1, stable=True)  # their positions, in order, come first
    number = torch.arange(max_chosen(ids.size(-1), rate), device=ids.device)
    # float32 is exact enough here: T is far below 2**24.
    picks = (priority[:, : len(number)] * num_candidates).long()
    positions = candidates.gather(-1, picks.minimum((num_candidates - 1).clamp(min=0)))
    return positions, (number < num_to_choose(attended, rate)) & (num_candidates > 0)


def choose_words(
    ids: Tensor, attended: Tensor, special: SpecialTokens, rate: float, priority: Tensor, is_continuation: Tensor
) -> tuple[Tensor, Tensor]:
    """As `choose_positions`, but whole words only: is_continuation (V,) marks tokens that continue the word before them (##).

    Words are taken in a random order while they fit into the count; one that is too long for the rest is skipped (as in BERT's
    whole-word masking). A row without a word that fits has no position that counts.
    """
    can_choose = can_be_chosen(ids, attended, special)
    position = torch.arange(ids.size(-1), device=ids.device)
    before = F.pad(can_choose[:, :-1], (1, 0), value=False)
    # A row may begin inside a word: the rest of the word then counts as a word.
    is_start = can_choose & ~(is_continuation[ids] & before)
    start = torch.where(is_start, position, 0).cummax(-1).values  # (B, T): where the token's word begins
    length = torch.zeros_like(ids).scatter_add(-1, start, can_choose.long()).gather(-1, start)  # of the token's word
    order = _by_priority(priority.gather(-1, start).masked_fill(~can_choose, -1))  # stable: a word stays together
    length, offset, is_left = (each.gather(-1, order) for each in (length, position - start, can_choose))
    is_taken = torch.zeros_like(is_left)
    room = num_to_choose(attended, rate)
    for _ in range(NUM_PASSES):
        fits = is_left & (length <= room)
        end = fits.cumsum(-1) - offset - 1 + length  # the number of tokens taken, this word included
        takes = fits & (end <= room)
        is_taken, is_left, room = is_taken | takes, is_left & ~takes, room - takes.sum(-1, keepdim=True)
    chosen = (~is_taken).long().argsort(dim=-1, stable=True)[:, : max_chosen(ids.size(-1), rate)]
    return order.gather(-1, chosen), is_taken.gather(-1, chosen)


def _by_priority(priority: Tensor) -> Tensor:
    """Highest first. A stable sort, not topk: ties are broken the same way on every device."""
    return priority.argsort(dim=-1, descending=True, stable=True)


# Mask


def mask_tokens(
    tokens: Tensor,
    special: SpecialTokens,
    draws: Tensor,
    mask_share: float,
    random_share: float = 0.0,
    random_tokens: Tensor | None = None,
) -> Tensor:
    """[MASK] at one share of the chosen positions, a random token at another, else the token itself (BERT: .8, .1, .1). (B, K)"""
    masked = torch.where(draws < mask_share, special.mask, tokens)
    if random_tokens is None:
        return masked
    is_random = (draws >= mask_share) & (draws < mask_share + random_share)
    return torch.where(is_random, random_tokens, masked)


def uniform_tokens(draws: Tensor, vocab_size: int, without: tuple[int, ...], not_these: Tensor | None = None) -> Tensor:
    """Uniformly random ids of the shape of `draws`: none of `without`, and elementwise not `not_these`."""
    skipped = sorted(set(without))
    num_ids = vocab_size - len(skipped) - (not_these is not None)
    tokens = (draws * num_ids).long().clamp(max=num_ids - 1)
    if not_these is not None:  # find its rank among the ids that are left, and skip it
        tokens = tokens + (tokens >= not_these - sum((not_these > token).long() for token in skipped)).long()
    for token in skipped:  # ascending: each shifts the ids at and above it by one
        tokens = tokens + (tokens >= token).long()
    return tokens


# Sample


@torch.no_grad()
def sample(
    logits: Tensor,
    draws: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    without: tuple[int, ...] = (),
    not_these: Tensor | None = None,
    towards: Tensor | None = None,
) -> Tensor:
    """Sample a token from each softmax: logits (B, K, V), one uniform number each (B, K) -> ids (B, K).

    By the inverse CDF: the first id at which the cumulative probability exceeds the number. Never an id of `without`, nor
    `not_these` (B, K), nor one of probability 0. -1 where there is no distribution: the logits are NaN, or no id is left.
    A temperature flattens the distribution to the uniform one, or to that of the logits `towards` (V,). Always in fp32, a few rows
    at a time.
    """
    num_rows = max(1, MAX_LOGITS // logits.size(-1))
    inputs = [logits.flatten(0, -2), draws.flatten(), *([] if not_these is None else [not_these.flatten()])]
    blocks = zip(*(each.split(num_rows) for each in inputs), strict=True)
    return torch.cat([_sample_rows(temperature, without, towards, *block) for block in blocks]).view_as(draws)


def _sample_rows(
    temperature: float | Tensor,
    without: tuple[int, ...],
    towards: Tensor | None,
    logits: Tensor,
    draws: Tensor,
    not_these: Tensor | None = None,
) -> Tensor:
    """logits (R, V), draws (R,), not_these (R,) -> ids (R,)"""
    scores = F.pad(logits.float(), (0, -logits.size(-1) % BLOCK), value=-torch.inf)  # a copy, changed in place below
    if towards is not None:
        scores[:, : logits.size(-1)] += towards * (temperature - 1)  # divided by the temperature below
    for token in without:
        scores[:, token] = -torch.inf
    if not_these is not None:
        scores.scatter_(-1, not_these.unsqueeze(-1), -torch.inf)
    if isinstance(temperature, Tensor) or temperature != 1:
        scores.div_(temperature)
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_().unflatten(-1, (-1, BLOCK))  # (R, V / BLOCK, BLOCK)
    totals = weights.sum(-1)  # (R, V / BLOCK)
    sums = totals.cumsum(-1)
    target = draws.unsqueeze(-1) * sums[:, -1:]
    block = _first_past(target, sums, totals)  # (R, 1)
    target = target - (sums - totals).gather(-1, block)
    inside = weights.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1)  # (R, BLOCK)
    sampled = block * BLOCK + _first_past(target, inside.cumsum(-1), inside)
    return torch.where(sums[:, -1:].isnan(), -1, sampled).squeeze(-1)


def _first_past(target: Tensor, sums: Tensor, weights: Tensor) -> Tensor:
    """The first index whose sum exceeds the target and whose weight is not 0; (R, 1).

    Rounding may leave none when the number is almost 1: then the index of the largest weight, which is never a forbidden one.
    """
    is_past = (sums > target) & (weights > 0)
    first = is_past.to(torch.uint8).argmax(-1, keepdim=True)
    return torch.where(is_past.any(-1, keepdim=True), first, weights.argmax(-1, keepdim=True))


# Write


def write(ids: Tensor, positions: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """The rows with `tokens` (B, K) at the positions that count; no position may come twice. (B, T)"""
    return ids.scatter(-1, positions, torch.where(counts, tokens, ids.gather(-1, positions)))


def write_averages(ids: Tensor, positions: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """The official code's scatter: a position that was chosen twice gets the floor of the average id, a junk token. (B, T)"""
    num_hits = torch.zeros_like(ids).scatter_add(-1, positions, counts.long())
    sums = torch.zeros_like(ids).scatter_add(-1, positions, torch.where(counts, tokens, 0))
    return torch.where(num_hits > 0, sums // num_hits.clamp(min=1), ids)


def is_chosen(ids: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
    """The positions that count, as a mask: bool (B, T)."""
    return torch.zeros_like(ids).scatter_add(-1, positions, counts.long()) > 0

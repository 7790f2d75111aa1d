"""Ids and uniform numbers in, corrupted ids out: choose, show, sample, write. Pure functions with static shapes.

B rows, T tokens, K chosen positions, V vocabulary. K is fixed, so that the whole step compiles as one graph: slots that a row has
no use for carry `counts` False, and change nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit.pretrain_config import num_slots

BLOCK = 256
"""Tokens summed together by `sample`, about sqrt(V): a distribution is searched in two steps, like a word in a dictionary."""
MAX_SCORES = 2**24
"""Scores that `sample` holds in fp32 at once: 64 MB."""
NUM_PASSES = 3
"""How often whole-word masking goes through the words to fill the room that is left."""


@dataclass(frozen=True)
class SpecialTokens:
    """Ids that are treated apart."""

    pad: int
    mask: int
    never_masked: tuple[int, ...] = ()
    """[CLS], [SEP] and the like. Padding and [MASK] need not be named."""
    sep: int | None = None
    """Begins segment B, where the models have segments."""

    @property
    def not_words(self) -> tuple[int, ...]:
        """Neither chosen nor shown as a random token."""
        return tuple(sorted({self.pad, self.mask, *self.never_masked, *self.shape_the_row}))

    @property
    def shape_the_row(self) -> tuple[int, ...]:
        """Never written into a row: what is attended and which segment it is in are read from the ids."""
        return (self.pad,) if self.sep is None else tuple(sorted({self.pad, self.sep}))


def num_wanted(ids: Tensor, special: SpecialTokens, rate: float) -> Tensor:
    """How many positions each row is due, by its real tokens, [CLS] and [SEP] included: (B, 1)."""
    num_real = (ids != special.pad).sum(-1, keepdim=True)
    return (num_real * rate).round().long().clamp(1, num_slots(ids.size(-1), rate))


def can_be_masked(ids: Tensor, special: SpecialTokens) -> Tensor:
    """(B, T)"""
    can_mask = ids != special.pad
    for token in special.not_words:  # a handful: comparisons fuse, a table would need V
        can_mask = can_mask & (ids != token)
    return can_mask


# Choose


def choose_positions(ids: Tensor, special: SpecialTokens, rate: float, lottery: Tensor) -> tuple[Tensor, Tensor]:
    """Pick about `rate` of each row's real tokens, no position twice: positions (B, K), and which of them count (B, K)."""
    can_mask = can_be_masked(ids, special)
    positions = _first_by_lottery(lottery.masked_fill(~can_mask, -1))[:, : num_slots(ids.size(-1), rate)]
    counts = torch.arange(positions.size(-1), device=ids.device) < num_wanted(ids, special, rate)
    return positions, counts & can_mask.gather(-1, positions)


def choose_with_replacement(ids: Tensor, special: SpecialTokens, rate: float, lottery: Tensor) -> tuple[Tensor, Tensor]:
    """The official code's choice: each slot takes any candidate, so that some are hit twice. (B, K) and (B, K)."""
    can_mask = can_be_masked(ids, special)
    num_candidates = can_mask.sum(-1, keepdim=True)
    candidates = (~can_mask).long().argsort(dim=-1, stable=True)  # their positions, in order, come first
    slots = torch.arange(num_slots(ids.size(-1), rate), device=ids.device)
    picks = (
        lottery[:, : len(slots)] * num_candidates
    ).long()  # float32 holds every product apart: T is far below 2**24
    positions = candidates.gather(-1, picks.minimum((num_candidates - 1).clamp(min=0)))
    return positions, (slots < num_wanted(ids, special, rate)) & (num_candidates > 0)


def choose_words(
    ids: Tensor, special: SpecialTokens, rate: float, lottery: Tensor, is_continuation: Tensor
) -> tuple[Tensor, Tensor]:
    """As `choose_positions`, but whole words only: is_continuation (V,) says which tokens go on with the word before (##).

    Words are taken in the order of a lottery, while they fit into the count; one that is too long for what is left is passed over
    (as in BERT's whole-word masking). A row without a word that fits has no position that counts.
    """
    can_mask = can_be_masked(ids, special)
    place = torch.arange(ids.size(-1), device=ids.device)
    before = F.pad(can_mask[:, :-1], (1, 0), value=False)
    # A row that begins inside a word begins with what is left of it.
    is_start = can_mask & ~(is_continuation[ids] & before)
    start = torch.where(is_start, place, 0).cummax(-1).values  # (B, T): where the token's word begins
    num_pieces = torch.zeros_like(ids).scatter_add(-1, start, can_mask.long()).gather(-1, start)
    order = _first_by_lottery(lottery.gather(-1, start).masked_fill(~can_mask, -1))  # stable: a word stays together
    num_pieces, piece, is_left = (each.gather(-1, order) for each in (num_pieces, place - start, can_mask))
    is_taken = torch.zeros_like(is_left)
    room = num_wanted(ids, special, rate)
    for _ in range(NUM_PASSES):
        fits = is_left & (num_pieces <= room)
        end = fits.cumsum(-1) - piece - 1 + num_pieces  # tokens taken once the word is
        takes = fits & (end <= room)
        is_taken, is_left, room = is_taken | takes, is_left & ~takes, room - takes.sum(-1, keepdim=True)
    slots = (~is_taken).long().argsort(dim=-1, stable=True)[:, : num_slots(ids.size(-1), rate)]
    return order.gather(-1, slots), is_taken.gather(-1, slots)


def _first_by_lottery(lottery: Tensor) -> Tensor:
    """Highest first. A stable sort, not topk: equal numbers fall the same way on every device."""
    return lottery.argsort(dim=-1, descending=True, stable=True)


# Show


def show_masks(tokens: Tensor, special: SpecialTokens, mask_share: float, draws: Tensor) -> Tensor:
    """What stands at the chosen positions of the generator's input: [MASK] at a share of them, else the token itself. (B, K)"""
    return torch.where(draws < mask_share, special.mask, tokens)


def show_masks_and_random(
    tokens: Tensor,
    special: SpecialTokens,
    mask_share: float,
    random_share: float,
    draws: Tensor,
    random_tokens: Tensor,
) -> Tensor:
    """[MASK] at one share of the chosen positions, a random token at another, else the token itself (BERT: .8, .1, .1). (B, K)"""
    is_random = (draws >= mask_share) & (draws < mask_share + random_share)
    return torch.where(is_random, random_tokens, show_masks(tokens, special, mask_share, draws))


def uniform_tokens(draws: Tensor, vocab_size: int, without: tuple[int, ...], not_these: Tensor | None = None) -> Tensor:
    """Each id equally often, but those in `without` never, nor `not_these`, one for each place. Of the shape of `draws`."""
    skipped = sorted({token for token in without if 0 <= token < vocab_size})
    num_ids = vocab_size - len(skipped) - (not_these is not None)
    tokens = (draws * num_ids).long().clamp(max=num_ids - 1)
    if not_these is not None:  # its rank among the ids that are left, then one step over it
        tokens = tokens + (tokens >= not_these - sum((not_these > token).long() for token in skipped)).long()
    for token in skipped:  # ascending: each moves the ids at and above it up by one
        tokens = tokens + (tokens >= token).long()
    return tokens


# Sample


@torch.no_grad()
def sample(
    logits: Tensor,
    draws: Tensor,
    *,
    temperature: float = 1.0,
    without: tuple[int, ...] = (),
    not_these: Tensor | None = None,
) -> Tensor:
    """One token from each softmax: logits (B, K, V), one uniform number each (B, K) -> ids (B, K).

    By the inverse of the distribution function: the first id at which the summed probability passes the number. Never an id
    `without`, nor `not_these` (B, K), nor one of probability 0. -1 where there is no distribution: the scores are NaN, or none is left.
    Always in fp32, a few rows at a time.
    """
    num_rows = max(1, MAX_SCORES // logits.size(-1))
    rows = zip(logits.flatten(0, -2).split(num_rows), draws.flatten().split(num_rows), strict=True)
    forbidden = None if not_these is None else not_these.flatten().split(num_rows)
    sampled = [
        _sample_rows(scores, numbers, forbidden and forbidden[block], temperature, without)
        for block, (scores, numbers) in enumerate(rows)
    ]
    return torch.cat(sampled).view_as(draws)


def _sample_rows(
    logits: Tensor, draws: Tensor, not_these: Tensor | None, temperature: float, without: tuple[int, ...]
) -> Tensor:
    """logits (R, V), draws (R,), not_these (R,) -> ids (R,)"""
    scores = F.pad(logits.float(), (0, -logits.size(-1) % BLOCK), value=-torch.inf)  # a copy, then changed in place
    for token in without:
        scores[:, token] = -torch.inf
    if not_these is not None:
        scores.scatter_(-1, not_these.unsqueeze(-1), -torch.inf)
    if temperature != 1:
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
    """The first place whose sum is past the target and whose weight is not 0; (R, 1).

    Rounding may leave none when the number is almost 1: then the heaviest place, which cannot be a forbidden one.
    """
    is_past = (sums > target) & (weights > 0)
    first = is_past.to(torch.uint8).argmax(-1, keepdim=True)
    return torch.where(is_past.any(-1, keepdim=True), first, weights.argmax(-1, keepdim=True))


# Write


def write(ids: Tensor, positions: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """The rows with `tokens` (B, K) at the positions that count; no position may come twice. (B, T)"""
    return ids.scatter(-1, positions, torch.where(counts, tokens, ids.gather(-1, positions)))


def write_averages(ids: Tensor, positions: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """The official code's scatter: where a position comes twice, the floor of the average id is written, a junk token. (B, T)"""
    num_hits = torch.zeros_like(ids).scatter_add(-1, positions, counts.long())
    sums = torch.zeros_like(ids).scatter_add(-1, positions, torch.where(counts, tokens, 0))
    return torch.where(num_hits > 0, sums // num_hits.clamp(min=1), ids)


def is_chosen(ids: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
    """The positions that count, seen from the rows: bool (B, T)."""
    return torch.zeros_like(ids).scatter_add(-1, positions, counts.long()) > 0


def is_replaced(ids: Tensor, corrupted: Tensor) -> Tensor:
    """The discriminator's labels: a correct guess is an original. bool (B, T)"""
    return corrupted != ids

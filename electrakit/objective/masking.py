"""Chooses and masks tokens of a batch: the part that all objectives share."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.word_marks import is_continuation, word_mark
from electrakit.config.objective import check_mask_prob, check_whole_words
from electrakit.objective import corrupt
from electrakit.objective.corrupt import SpecialTokens
from electrakit.objective.randomness import Draws, draw, fresh_keys


class Masked(NamedTuple):
    """The chosen positions of each row, and the masked rows."""

    positions: Tensor  # (B, K)
    counts: Tensor  # (B, K) bool: which of the positions count
    originals: Tensor  # (B, K): the tokens there
    inputs: Tensor  # (B, T): the ids that the model reads, with [MASK] at most of the chosen positions
    attended: Tensor  # (B, T) bool: not padding
    is_hidden: Tensor | None = None  # (B, K) bool: where the discriminator, too, reads [MASK]


class MaskedBatch(NamedTuple):
    """Rows that an objective has masked, before any network reads them. Its forward pass takes this in place of draws."""

    masked: Masked
    sample: Tensor  # (B, K): uniform numbers, from which replacements are sampled
    is_scored: Tensor | None  # bool: the tokens that the discriminator's loss is a mean over; None without one
    num_tokens: Tensor  # (2,): how many tokens the generator's and the discriminator's loss are means over


class MaskedObjective(nn.Module):
    """The part that all objectives share: which tokens are masked, and how many tokens each loss is a mean over.

    Both are known before the forward pass. A step of several micro-batches masks them all first, and can then weigh each one by its
    share of the step's tokens.
    """

    masking: "Masking"
    loss_weights: tuple[float, float, float] = (1.0, 1.0, 0.0)
    """Of mlm_loss, disc_loss and correct_loss in the loss."""

    @property
    def counts_tokens(self) -> bool:
        """Whether the loss is known to be the weighted sum of these means. A user's subclass may compute another loss."""
        return all(kind.__module__.split(".")[0] in ("electrakit", "torch", "builtins") for kind in type(self).__mro__)

    def mask(self, ids: Tensor, draws: "Draws | Tensor | MaskedBatch | None" = None) -> MaskedBatch:
        """Choose and mask tokens of ids (B, T). A MaskedBatch is returned unchanged."""
        if isinstance(draws, MaskedBatch):
            return draws
        draws = self.masking.draws(ids, draws)
        masked = self.masking(ids, draws)
        is_scored = self.is_scored(ids, masked)
        num_chosen = masked.counts.sum()
        num_scored = torch.zeros_like(num_chosen) if is_scored is None else is_scored.sum()
        return MaskedBatch(masked, draws.sample, is_scored, torch.stack([num_chosen, num_scored]))

    def is_scored(self, ids: Tensor, masked: Masked) -> Tensor | None:
        """The tokens that the discriminator's loss is a mean over: bool (B, T), or (B, K) where it reads chosen positions only."""
        return None


class Masking(nn.Module):
    """Chooses positions and masks them. It has settings, but no parameters."""

    is_continuation: Tensor | None

    def __init__(
        self,
        special: SpecialTokens,
        *,
        mask_prob: float,
        mask_share: float,
        random_share: float = 0.0,
        vocab_size: int | None = None,
        hidden_share: float = 0.0,
        official: bool = False,
        is_continuation: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_mask_prob(mask_prob)
        check_whole_words(is_continuation is not None, official)
        if random_share and vocab_size is None:
            raise UserError("random tokens need the size of the vocabulary: pass num_tokens")
        if random_share and hidden_share:
            raise UserError(
                f"random_token_prob {random_share} and keep_mask_prob {hidden_share}: leave one of the two out"
            )
        self.special, self.mask_prob, self.mask_share, self.random_share = special, mask_prob, mask_share, random_share
        self.hidden_share, self.vocab_size, self.official = hidden_share, vocab_size, official
        self.register_buffer("is_continuation", is_continuation, persistent=False)  # of the tokenizer, not learned

    def draws(self, ids: Tensor, given: Draws | Tensor | None) -> Draws:
        """Draws are returned unchanged, keys of the rows (see `row_keys`) give theirs, None gives new ones from torch's generator."""
        num_rows, num_tokens = ids.shape
        num_chosen = corrupt.max_chosen(num_tokens, self.mask_prob)
        if isinstance(given, Draws):
            sizes = (num_tokens, num_chosen, num_chosen, num_chosen)
            for name, each, size in zip(Draws._fields, given, sizes, strict=True):
                if each.shape != (num_rows, size):
                    raise UserError(f"draws.{name} is {tuple(each.shape)}; wanted {(num_rows, size)} for these ids")
            return Draws(*(each.to(ids.device) for each in given))
        keys = fresh_keys(num_rows, ids.device) if given is None else given
        if keys.shape != (num_rows, 2) or keys.dtype != torch.int64:
            raise UserError(
                f"draws are {keys.dtype} {tuple(keys.shape)}; wanted the keys of {num_rows} rows, int64 {(num_rows, 2)}: "
                "see electrakit.objective.randomness.row_keys"
            )
        return draw(keys.to(ids.device), num_tokens, num_chosen)

    def forward(self, ids: Tensor, draws: Draws) -> Masked:
        attended = ids != self.special.pad
        positions, counts = self.choose(ids, attended, draws.priority)
        originals = ids.gather(-1, positions)
        random_tokens = None
        if self.random_share:
            assert self.vocab_size is not None
            random_tokens = corrupt.uniform_tokens(draws.token, self.vocab_size, self.special.never_chosen)
        shares = (self.mask_share, self.random_share)
        tokens = corrupt.mask_tokens(originals, self.special, draws.mask, *shares, random_tokens)
        # A token that stays is not written: if its position was chosen twice, the other choice decides.
        inputs = self.write(ids, positions, tokens, counts & (tokens != originals))
        # The numbers of random tokens, of which there are none.
        is_hidden = counts & (draws.token < self.hidden_share) if self.hidden_share else None
        return Masked(positions, counts, originals, inputs, attended, is_hidden)

    def choose(self, ids: Tensor, attended: Tensor, priority: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_continuation is not None:
            return corrupt.choose_words(ids, attended, self.special, self.mask_prob, priority, self.is_continuation)
        choose = corrupt.choose_with_replacement if self.official else corrupt.choose_positions
        return choose(ids, attended, self.special, self.mask_prob, priority)

    def write(self, ids: Tensor, positions: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
        return (corrupt.write_averages if self.official else corrupt.write)(ids, positions, tokens, counts)


def special_tokens(
    pad: int, mask: int, never_masked: Iterable[int], sep: int | None, vocab_size: int | None
) -> SpecialTokens:
    """Refuses ids outside the vocabulary, and one that stands for two tokens: [MASK] or [SEP] as padding would not be attended to."""
    if pad == mask:
        raise UserError(f"mask_token_id and pad_token_id are both {pad}: they must differ")
    if sep in (pad, mask):
        raise UserError(f"sep_token_id {sep} is also the id of padding or [MASK]: they must differ")
    special = SpecialTokens(int(pad), int(mask), tuple(int(token) for token in never_masked), sep)
    named = [("pad_token_id", special.pad), ("mask_token_id", special.mask), ("sep_token_id", sep)]
    for name, token in [*named, *(("mask_ignore_token_ids", token) for token in special.never_masked)]:
        if token is not None and (token < 0 or (vocab_size is not None and token >= vocab_size)):
            size = f" of {vocab_size} tokens" if vocab_size else ""
            raise UserError(f"{name} has {token}, which is not in the vocabulary{size}")
    return special


def checked_ids(ids: Tensor) -> Tensor:
    """Ids (B, T) of any integer type as int64."""
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise UserError(f"ids are {ids.dtype} {tuple(ids.shape)}; wanted integers (rows, tokens)")
    return ids.long()


def is_continuation_table(vocab: dict[str, int], vocab_size: int | None = None, mark: str | None = None) -> Tensor:
    """For whole-word masking: which ids continue the word before them, bool (V,); from a tokenizer's get_vocab().

    mark: how the vocabulary marks words, ##, ▁ or Ġ; see `common.word_marks`. By default found in the vocabulary.
    """
    mark = word_mark(vocab) if mark is None else mark
    table = torch.zeros(vocab_size or max(vocab.values()) + 1, dtype=torch.bool)
    table[[number for token, number in vocab.items() if is_continuation(token, mark)]] = True
    return table

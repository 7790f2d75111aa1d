"""Rows and draws in; the chosen positions, and the rows as the generator is shown them, out."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.objective import corrupt
from electrakit.objective.corrupt import SpecialTokens
from electrakit.objective.randomness import Draws, draw, fresh_keys


class Masked(NamedTuple):
    """What was chosen in each row."""

    positions: Tensor  # (B, K)
    counts: Tensor  # (B, K) bool: slots that are in use
    originals: Tensor  # (B, K): the tokens there
    shown: Tensor  # (B, T): the rows with [MASK] at most of them


class Masking(nn.Module):
    """The settings of the choice. It has no parameters."""

    is_continuation: Tensor | None

    def __init__(
        self,
        special: SpecialTokens,
        *,
        mask_prob: float,
        mask_share: float,
        random_share: float = 0.0,
        vocab_size: int | None = None,
        official: bool = False,
        is_continuation: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_rates(mask_prob=mask_prob, mask_share=mask_share, random_share=random_share)
        if mask_prob == 0:
            raise UserError("mask_prob is 0: nothing would be learned; the paper has 0.15")
        if mask_share + random_share > 1 + 1e-9:
            raise UserError(
                f"[MASK] at {mask_share} and a random token at {random_share} of the positions is more than all"
            )
        if random_share and vocab_size is None:
            raise UserError("random tokens need the size of the vocabulary: pass num_tokens")
        if official and is_continuation is not None:
            raise UserError("official=True chooses tokens one by one: drop it, or drop is_continuation (whole words)")
        check_vocabulary(special, vocab_size)
        self.special, self.mask_prob, self.mask_share, self.random_share = special, mask_prob, mask_share, random_share
        self.vocab_size, self.official = vocab_size, official
        self.register_buffer("is_continuation", is_continuation, persistent=False)  # the tokenizer's, not learned

    def draws(self, ids: Tensor, given: Draws | Tensor | None) -> Draws:
        """Draws as they are; or of the rows' keys (see `row_keys`); or fresh ones from torch's generator."""
        num_rows, num_tokens = ids.shape
        num_slots = corrupt.num_slots(num_tokens, self.mask_prob)
        if isinstance(given, Draws):
            sizes = (num_tokens, num_slots, num_slots, num_slots)
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
        return draw(keys.to(ids.device), num_tokens, num_slots)

    def forward(self, ids: Tensor, draws: Draws) -> Masked:
        positions, counts = self.choose(ids, draws.lottery)
        originals = ids.gather(-1, positions)
        tokens = self.show(originals, draws)
        # A slot that shows its own token writes nothing: if another slot hit the same position, that one decides.
        shown = self.write(ids, positions, tokens, counts & (tokens != originals))
        return Masked(positions, counts, originals, shown)

    def choose(self, ids: Tensor, lottery: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_continuation is not None:
            return corrupt.choose_words(ids, self.special, self.mask_prob, lottery, self.is_continuation)
        choose = corrupt.choose_with_replacement if self.official else corrupt.choose_positions
        return choose(ids, self.special, self.mask_prob, lottery)

    def show(self, originals: Tensor, draws: Draws) -> Tensor:
        if not self.random_share:
            return corrupt.show_masks(originals, self.special, self.mask_share, draws.show)
        assert self.vocab_size is not None
        random_tokens = corrupt.uniform_tokens(draws.token, self.vocab_size, self.special.not_words)
        return corrupt.show_masks_and_random(
            originals, self.special, self.mask_share, self.random_share, draws.show, random_tokens
        )

    def write(self, ids: Tensor, positions: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
        return (corrupt.write_averages if self.official else corrupt.write)(ids, positions, tokens, counts)


def special_tokens(pad: int, mask: int, never_masked: Iterable[int], sep: int | None) -> SpecialTokens:
    """Checked: a mask that is the padding would hide what is to be guessed, and a [SEP] that is the padding would end the row."""
    if pad == mask:
        raise UserError(f"mask_token_id and pad_token_id are both {pad}: they must differ")
    if sep in (pad, mask):
        raise UserError(f"sep_token_id {sep} is also the id of padding or [MASK]: they must differ")
    return SpecialTokens(int(pad), int(mask), tuple(int(token) for token in never_masked), sep)


def check_vocabulary(special: SpecialTokens, vocab_size: int | None) -> None:
    names = {"pad_token_id": special.pad, "mask_token_id": special.mask, "sep_token_id": special.sep}
    named = [*names.items(), *(("mask_ignore_token_ids", token) for token in special.never_masked)]
    for name, token in named:
        if token is not None and (token < 0 or (vocab_size is not None and token >= vocab_size)):
            raise UserError(
                f"{name} has {token}, which is not in the vocabulary"
                + (f" of {vocab_size} tokens" if vocab_size else "")
            )


def whole_numbers(ids: Tensor) -> Tensor:
    """Ids of any integer type as int64: (B, T)."""
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise UserError(f"ids are {ids.dtype} {tuple(ids.shape)}; wanted whole numbers (rows, tokens)")
    return ids.long()


def check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0 <= rate <= 1:
            raise UserError(f"{name} is {rate}: it is a rate, from 0 to 1")


def is_continuation_table(vocab: dict[str, int], vocab_size: int | None = None, prefix: str = "##") -> Tensor:
    """For whole-word masking: which ids go on with the word before, bool (V,); from a WordPiece tokenizer's get_vocab()."""
    table = torch.zeros(vocab_size or max(vocab.values()) + 1, dtype=torch.bool)
    table[[number for token, number in vocab.items() if token.startswith(prefix)]] = True
    return table

"""Rows and draws in; the chosen positions, and the rows as the generator is shown them, out."""

from collections.abc import Iterable
from typing import Any, NamedTuple

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
        self.special, self.mask_prob, self.mask_share, self.random_share = special, mask_prob, mask_share, random_share
        self.vocab_size, self.official = vocab_size, official
        self.register_buffer("is_continuation", is_continuation, persistent=False)  # the tokenizer's, not learned

    def draws(self, ids: Tensor, given: Draws | Tensor | None) -> Draws:
        """Draws as they are; or of the rows' keys (see `row_keys`); or fresh ones from torch's generator."""
        if isinstance(given, Draws):
            return given
        keys = fresh_keys(ids.size(0), ids.device) if given is None else given
        return draw(keys, ids.size(1), corrupt.num_slots(ids.size(1), self.mask_prob))

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
    """Checked: a mask that is the padding would hide what is to be guessed."""
    if pad == mask:
        raise UserError(f"mask_token_id and pad_token_id are both {pad}: they must differ")
    return SpecialTokens(int(pad), int(mask), tuple(int(token) for token in never_masked), sep)


def check_rates(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0 <= rate <= 1:
            raise UserError(f"{name} is {rate}: it is a rate, from 0 to 1")


def vocab_size_of(*models: Any) -> int | None:
    """As the first model that knows it says."""
    for model in models:
        inner = getattr(model, "model", model)  # of an adapter
        for owner, name in (
            (getattr(inner, "config", None), "vocab_size"),
            (inner, "vocab_size"),
            (inner, "num_tokens"),
        ):
            if isinstance(size := getattr(owner, name, None), int):
                return size
    return None


def is_continuation_table(vocab: dict[str, int], vocab_size: int | None = None, prefix: str = "##") -> Tensor:
    """For whole-word masking: which ids go on with the word before, bool (V,); from a WordPiece tokenizer's get_vocab()."""
    table = torch.zeros(vocab_size or max(vocab.values()) + 1, dtype=torch.bool)
    table[[number for token, number in vocab.items() if token.startswith(prefix)]] = True
    return table

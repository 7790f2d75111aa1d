"""A discriminator and a generator over one vocabulary: which tokens of a text look replaced, what could stand there instead."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.word_marks import CONTINUES, token_text, word_mark
from electrakit.data.tokenizer_files import TokenizerFiles
from electrakit.objective import corrupt
from electrakit.objective.corrupt import SpecialTokens
from electrakit.objective.masking import Masking
from electrakit.objective.randomness import draw, row_keys


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary marks word starts: WordPiece marks the tokens that continue a word, others those that begin one."""

    mark: str

    def is_continued(self, token: str) -> bool:
        """Whether a token follows what is before it without a space."""
        return token.startswith(CONTINUES) if self.mark == CONTINUES else not token.startswith(self.mark)

    def word(self, token: str) -> str:
        """The token without its mark."""
        return token_text(token, self.mark).strip()


@dataclass(frozen=True)
class Token:
    """A token of a text, and where it stands there."""

    token: str
    """Its entry in the vocabulary."""
    before: str
    """The text between the token before and this one: mostly a space, or empty."""
    text: str
    """As typed, with capitals and accents."""
    word: int
    """Tokens with the same number are parts of one word."""
    is_special: bool
    """[MASK], [SEP] and the like, which get no score."""


@dataclass(frozen=True)
class EncodedText:
    """A text and its tokens: `before` and `text` of all tokens and the tail, joined, are the text."""

    ids: list[int]
    """With [CLS] and [SEP] around."""
    tokens: list[Token]
    tail: str
    """The text after the last token, including what was cut off."""
    num_cut: int
    """Tokens that the model has no room for."""


@dataclass(frozen=True)
class TokenPrediction:
    """A token that the generator predicts somewhere, and its probability there."""

    token: str
    probability: float
    text: str
    """The full text with this token in its place."""


@dataclass(frozen=True)
class TokenPredictions:
    """The best predictions for one place, and the probability and rank of the token that stands there."""

    best: list[TokenPrediction]
    token: str
    probability: float
    rank: int
    """From 1."""


@dataclass(frozen=True)
class GameRound:
    """A round of the training game: rows of ids as in `EncodedText`, before and after the generator's replacements."""

    originals: list[int]
    corrupted: list[int]
    is_chosen: list[bool]
    """Where the generator sampled. A sample that equals the original counts as original."""

    @property
    def is_replaced(self) -> list[bool]:
        return [before != after for before, after in zip(self.originals, self.corrupted, strict=True)]


class Pair:
    """A discriminator and a generator over one vocabulary, ready for inference; one of them may be missing."""

    def __init__(
        self,
        name: str,
        tokenizer: TokenizerFiles,
        max_tokens: int,
        generator: nn.Module | None = None,
        discriminator: nn.Module | None = None,
    ) -> None:
        """Networks as `as_generator` and `as_discriminator` see them. `max_tokens` counts [CLS] and [SEP] too."""
        self.name, self.tokenizer, self.max_tokens = name, tokenizer, max_tokens
        self.generator, self.discriminator = generator, discriminator
        for network in (generator, discriminator):
            if network is not None:
                network.eval().requires_grad_(False)
        ids = tokenizer.special_ids
        self.special = SpecialTokens(ids["pad"], ids["mask"], (ids["cls"], ids["sep"]), ids["sep"])
        self.vocabulary = tokenizer.vocabulary
        self.spelling = Spelling(word_mark(self.vocabulary))

    def encode(self, text: str) -> EncodedText:
        """The tokens of a text, as many as fit into the model. `[MASK]` in the text is the mask."""
        encoding = self.tokenizer.tokenizer.encode(text, add_special_tokens=False)
        num_cut = max(0, len(encoding.ids) - (self.max_tokens - 2))
        encoding.truncate(self.max_tokens - 2)
        tokens: list[Token] = []
        end = 0
        for number, word, (start, stop) in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
            start, stop = max(start, end), max(stop, end)  # tokens of one character may overlap
            start = stop - len(text[start:stop].lstrip())  # the space before a word may belong to its token
            word = -1 - len(tokens) if word is None else word  # some tokenizers give special tokens no word
            is_special = number in self.special.never_chosen
            tokens.append(Token(self.vocabulary[number], text[end:start], text[start:stop], word, is_special))
            end = stop
        ids = self.tokenizer.special_ids
        return EncodedText([ids["cls"], *encoding.ids, ids["sep"]], tokens, text[end:], num_cut)

    @torch.no_grad()
    def replaced(self, ids: Sequence[int]) -> list[float]:
        """The discriminator's probability that each token of a row was replaced."""
        if self.discriminator is None:
            raise UserError(f"{self.name} has no discriminator")
        return self.discriminator(torch.tensor([ids]))[0].float().sigmoid().tolist()

    @torch.no_grad()
    def token_probabilities(self, ids: Sequence[int], place: int) -> Tensor:
        """The generator's probabilities for each token of the vocabulary at a place of a row, with a mask there: (V,)."""
        if self.generator is None:
            raise UserError(f"{self.name} has no generator")
        row = torch.tensor([ids])
        row[0, place] = self.special.mask
        return self.generator(row, torch.tensor([[place]]))[0, 0].float().softmax(-1)

    def predictions(self, encoded: EncodedText, place: int, count: int = 8) -> TokenPredictions:
        """What the generator predicts in the place of one token, which is hidden from it."""
        scores = self.token_probabilities(encoded.ids, place + 1)  # behind [CLS]
        best = scores[: len(self.vocabulary)].topk(min(count, len(self.vocabulary)))
        tokens = [self.vocabulary[number] for number in best.indices.tolist()]
        predictions = [
            TokenPrediction(token, score, self.text_with(encoded, place, token))
            for token, score in zip(tokens, best.values.tolist(), strict=True)
        ]
        here = scores[encoded.ids[place + 1]]
        rank = int((scores > here).sum()) + 1
        return TokenPredictions(predictions, encoded.tokens[place].token, here.item(), rank)

    def text_with(self, encoded: EncodedText, place: int, token: str) -> str:
        """The text with another token at a place, with spaces so that it is tokenized as meant."""
        parts = [(token.before, token.text) for token in encoded.tokens]
        before, _ = parts[place]
        if self.spelling.is_continued(token):
            before = before.rstrip()
        elif place and not before and self.spelling.is_continued(encoded.tokens[place].token):
            before = " "
        parts[place] = before, self.spelling.word(token)
        return "".join(f"{before}{text}" for before, text in parts) + encoded.tail

    @torch.no_grad()
    def corrupt(self, encoded: EncodedText, rate: float, temperature: float = 1.0, seed: int = 0) -> GameRound:
        """Mask a share of the tokens and let the generator sample replacements, by the rules of the objective, for one row.

        All chosen tokens are masked, as in the paper; in training 15 % of them stay visible to the generator.
        """
        if self.generator is None:
            raise UserError(f"{self.name} has no generator")
        ids = torch.tensor([encoded.ids])
        masking = Masking(self.special, mask_prob=rate, mask_share=1.0)
        draws = draw(row_keys(seed, 0, [0]), ids.size(1), corrupt.max_chosen(ids.size(1), rate))
        positions, counts, originals, inputs, *_ = masking(ids, draws)
        logits = self.generator(inputs, positions)  # (1, K, V)
        logits[..., len(self.vocabulary) :] = -math.inf  # rows that pad the embedding table
        sampled = corrupt.sample(logits, draws.sample, temperature=temperature, without=self.special.never_sampled)
        sampled = torch.where(sampled < 0, originals, sampled)  # the logits were not finite
        corrupted = masking.write(ids, positions, sampled, counts)
        is_chosen = corrupt.is_chosen(ids, positions, counts)
        return GameRound(encoded.ids, corrupted[0].tolist(), is_chosen[0].tolist())

    def spell(self, ids: Sequence[int]) -> list[str]:
        """The tokens of a row without [CLS] and [SEP], each with a space before it if it begins a word.

        As the model sees them: neither capitals nor spaces tell which of them are original.
        """
        tokens = [self.vocabulary[number] for number in ids[1:-1]]
        spaces = [bool(place) and not self.spelling.is_continued(token) for place, token in enumerate(tokens)]
        return [" " * space + self.spelling.word(token) for space, token in zip(spaces, tokens, strict=True)]

    def replaced_in(self, parts: Sequence[str]) -> list[float | None]:
        """The probability that each part of a text was replaced, by another tokenizer: that of its most suspicious token."""
        encoded = self.encode("".join(parts))
        scores = self.replaced(encoded.ids)[1:-1]
        owners: list[list[float]] = [[] for _ in parts]
        ends = list(accumulate(map(len, parts)))
        place = 0
        for token, score in zip(encoded.tokens, scores, strict=True):
            start = place + len(token.before)
            place = start + len(token.text)
            first, last = bisect_right(ends, start), bisect_right(ends, max(start, place - 1))
            for owner in owners[first : last + 1]:
                owner.append(score)
        return [max(found, default=None) for found in owners]

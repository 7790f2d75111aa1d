"""A question of the page in, its answer out: plain values that were checked one by one, plain values back."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from electrakit.share.pair import Encoded, Pair

MAX_CHARACTERS = 4000
NUM_GUESSES = 8
EXAMPLES = (
    "The chef ate the meal and served it to the guests.",
    "She opened the window because the banana was too warm.",
    "The train to the city leaves every morning at the end of the door.",
    "If the file does not exist, an error is raised.",
)


class Refused(Exception):
    """A question that gets no answer: one line for the person who asked."""

    def __init__(self, message: str, status: int = 400, **headers: str) -> None:
        super().__init__(message)
        self.message, self.status, self.headers = message, status, headers


# --- questions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """The fields of a question, each taken once; what is left over has a wrong name."""

    fields: dict[str, Any]

    @classmethod
    def of(cls, body: Any) -> "Question":
        if not isinstance(body, dict):
            raise Refused("the body must be a JSON object")
        return cls(dict(body))

    def text(self) -> str:
        text = self.fields.pop("text", None)
        if not isinstance(text, str):
            raise Refused("text must be a string")
        if len(text) > MAX_CHARACTERS:
            raise Refused(f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read", 413)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise Refused("text has half of a surrogate pair, which is no character")
        return text

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.fields.pop(name, default)
        if type(value) is not int or not low <= value <= high:
            raise Refused(f"{name} must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        value = self.fields.pop(name, default)
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is in no range
            raise Refused(f"{name} must be a number from {low} to {high}")
        return float(value)

    def done(self) -> None:
        if self.fields:
            raise Refused(f"unknown field {str(next(iter(self.fields)))[:40]!r}")


# --- answers -------------------------------------------------------------------------------------------------------------


def about(pairs: Sequence[Pair]) -> dict[str, Any]:
    """What the page needs to know before anything was typed."""
    return {
        "models": [describe(pair) for pair in pairs],
        "examples": EXAMPLES,
        "max_characters": MAX_CHARACTERS,
    }


def describe(pair: Pair) -> dict[str, Any]:
    networks: dict[str, Any] = {"discriminator": pair.discriminator, "generator": pair.generator}
    return {
        "name": pair.name,
        "max_tokens": pair.max_tokens - 2,
        "vocab_size": len(pair.vocabulary),
        **{
            role: network
            and {
                "family": network.model.config.model_type,
                "parameters": sum(weight.numel() for weight in network.parameters()),
            }
            for role, network in networks.items()
        },
    }


def tokens(pairs: Sequence[Pair], question: Question) -> Callable[[], dict[str, Any]]:
    """The tokens of a text as each model sees it, and how likely each was replaced."""
    text = question.text()
    question.done()
    return lambda: {"models": [tokens_of(pair, text) for pair in pairs]}


def tokens_of(pair: Pair, text: str) -> dict[str, Any]:
    start = time.perf_counter()
    encoded = pair.encode(text)
    return {
        "tokens": [
            {"piece": token.piece, "before": token.before, "text": token.text, "word": token.word, "p": score}
            for token, score in zip(encoded.tokens, scores_of(pair, encoded), strict=True)
        ],
        "tail": encoded.tail,
        "num_cut": encoded.num_cut,
        "ms": round(1000 * (time.perf_counter() - start), 1),
    }


def scores_of(pair: Pair, encoded: Encoded) -> list[float | None]:
    """None for what has no score: special tokens, and everything where there is no discriminator."""
    if pair.discriminator is None or not encoded.tokens:
        return [None] * len(encoded.tokens)
    scores = pair.replaced(encoded.ids)[1:-1]
    return [None if token.is_special else finite(score) for token, score in zip(encoded.tokens, scores, strict=True)]


def guesses(pairs: Sequence[Pair], question: Question) -> Callable[[], dict[str, Any]]:
    """What the generator would put in the place of one token."""
    text = question.text()
    pair = pairs[question.whole("model", 0, len(pairs) - 1, 0)]
    place = question.whole("place", 0, MAX_CHARACTERS)
    question.done()
    require_generator(pair)
    return lambda: guesses_of(pair, text, place)


def guesses_of(pair: Pair, text: str, place: int) -> dict[str, Any]:
    encoded = pair.encode(text)
    if place >= len(encoded.tokens):
        raise Refused(f"place is {place}, but the text has {len(encoded.tokens)} tokens")
    found = pair.guesses(encoded, place, NUM_GUESSES)
    return {
        "guesses": [
            {
                "piece": guess.piece,
                "word": pair.spelling.word(guess.piece),
                "p": finite(guess.probability),
                "text": guess.text,
            }
            for guess in found.best
        ],
        "here": {"piece": found.piece, "p": finite(found.probability), "rank": found.rank},
    }


def game(pairs: Sequence[Pair], question: Question) -> Callable[[], dict[str, Any]]:
    """A round of the training game: a corrupted text, the truth, and what each discriminator says."""
    text = question.text()
    pair = pairs[question.whole("model", 0, len(pairs) - 1, 0)]
    rate = question.number("rate", 0.01, 0.9, 0.15)
    temperature = question.number("temperature", 0.1, 10.0, 1.0)
    seed = question.whole("seed", 0, 2**53 - 1, 0)  # what JavaScript can count
    question.done()
    require_generator(pair)
    return lambda: round_of(pairs, pair, text, rate, temperature, seed)


def round_of(
    pairs: Sequence[Pair], pair: Pair, text: str, rate: float, temperature: float, seed: int
) -> dict[str, Any]:
    encoded = pair.encode(text)
    if all(token.is_special for token in encoded.tokens):
        raise Refused("there is no word to replace: type a sentence first")
    played = pair.corrupt(encoded, rate, temperature, seed)
    parts = pair.spell(played.corrupted)
    answers = [answers_of(one, pair, played.corrupted, parts) for one in pairs]
    return {
        "tokens": [
            {
                "before": " " if part.startswith(" ") else "",
                "text": part.removeprefix(" "),
                "original": pair.spelling.word(token.piece),
                "is_special": token.is_special,
                "is_chosen": played.is_chosen[place + 1],
                "is_replaced": played.is_replaced[place + 1],
                "p": [None if token.is_special or answer is None else answer[place] for answer in answers],
            }
            for place, (token, part) in enumerate(zip(encoded.tokens, parts, strict=True))
        ],
        "num_cut": encoded.num_cut,
    }


def answers_of(one: Pair, player: Pair, ids: Sequence[int], parts: Sequence[str]) -> list[float | None] | None:
    """What a discriminator says about a row of the player's tokens. Another vocabulary reads them as text."""
    if one.discriminator is None:
        return None
    if one.vocabulary == player.vocabulary and len(ids) <= one.max_tokens:
        return [finite(score) for score in one.replaced(ids)[1:-1]]
    return [None if score is None else finite(score) for score in one.replaced_in(parts)]


def require_generator(pair: Pair) -> None:
    if pair.generator is None:
        raise Refused(f"{pair.name} has no generator, which this needs; start with --generator NAME", 409)


def finite(score: float) -> float | None:
    """JSON has no NaN: what a model that diverged says is nothing."""
    return round(score, 6) if math.isfinite(score) else None


QUESTIONS: dict[str, Callable[[Sequence[Pair], Question], Callable[[], dict[str, Any]]]] = {
    "tokens": tokens,
    "guesses": guesses,
    "round": game,
}
"""The last part of the address: checks the question at once, and returns what computes its answer."""

"""The endpoints of the playground's API: check the fields of a request, compute the answer as plain values."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from electrakit.playground.pair import Pair

MAX_CHARACTERS = 4000
NUM_PREDICTIONS = 8
EXAMPLES = (
    "The chef ate the meal and served it to the guests.",
    "She opened the window because the banana was too warm.",
    "The train to the city leaves every morning at the end of the door.",
    "If the file does not exist, an error is raised.",
)


class RequestError(Exception):
    """A request that is refused: one line for the user, and the HTTP status."""

    def __init__(self, message: str, status: int = 400, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


# --- requests ---


class RequestFields:
    """The fields of a request's body. Each is checked and taken once; one that is left over has an unknown name."""

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise RequestError("the body must be a JSON object")
        self.fields: dict[str, Any] = dict(body)

    def text(self) -> str:
        text = self.fields.pop("text", None)
        if not isinstance(text, str):
            raise RequestError("text must be a string")
        if len(text) > MAX_CHARACTERS:
            raise RequestError(f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read", 413)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise RequestError("text has half of a surrogate pair, which is no character")
        return text

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.fields.pop(name, default)
        if type(value) is not int or not low <= value <= high:
            raise RequestError(f"{name} must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        value = self.fields.pop(name, default)
        if type(value) not in (int, float) or not low <= value <= high:  # NaN is in no range
            raise RequestError(f"{name} must be a number from {low} to {high}")
        return float(value)

    def done(self) -> None:
        if self.fields:
            raise RequestError(f"unknown field {str(next(iter(self.fields)))[:40]!r}")


# --- answers ---


def about(pairs: Sequence[Pair]) -> dict[str, Any]:
    """What the page shows before the first text."""
    return {
        "models": [describe(pair) for pair in pairs],
        "examples": EXAMPLES,
        "max_characters": MAX_CHARACTERS,
    }


def describe(pair: Pair) -> dict[str, Any]:
    return {
        "name": pair.name,
        "max_tokens": pair.max_tokens - 2,
        "vocab_size": len(pair.vocabulary),
        **{role: network and asdict(network) for role, network in networks_of(pair).items()},
    }


@dataclass(frozen=True)
class NetworkDescription:
    family: str
    parameters: int


def networks_of(pair: Pair) -> dict[str, NetworkDescription | None]:
    """By role; None for one that the pair lacks."""
    networks: dict[str, Any] = {"discriminator": pair.discriminator, "generator": pair.generator}
    return {
        role: network
        and NetworkDescription(network.model.config.model_type, sum(weight.numel() for weight in network.parameters()))
        for role, network in networks.items()
    }


def tokens(pairs: Sequence[Pair], fields: RequestFields) -> dict[str, Any]:
    """The tokens of a text by each model's tokenizer, and how likely each was replaced."""
    text = fields.text()
    fields.done()
    return {"models": [tokens_of(pair, text) for pair in pairs]}


def tokens_of(pair: Pair, text: str) -> dict[str, Any]:
    start = time.perf_counter()
    encoded = pair.encode(text)
    scores = [None] * len(encoded.tokens) if pair.discriminator is None else pair.replaced(encoded.ids)[1:-1]
    return {
        "tokens": [
            {
                "token": token.token,
                "before": token.before,
                "text": token.text,
                "word": token.word,
                "p": None if token.is_special else rounded(score),
            }
            for token, score in zip(encoded.tokens, scores, strict=True)
        ],
        "tail": encoded.tail,
        "num_cut": encoded.num_cut,
        "ms": round(1000 * (time.perf_counter() - start), 1),
    }


def predictions(pairs: Sequence[Pair], fields: RequestFields) -> dict[str, Any]:
    """What the generator predicts in the place of one token."""
    text, pair = fields.text(), pair_with_generator(pairs, fields)
    place = fields.integer("place", 0, MAX_CHARACTERS)
    fields.done()
    encoded = pair.encode(text)
    if place >= len(encoded.tokens):
        raise RequestError(f"place is {place}, but the text has {len(encoded.tokens)} tokens")
    found = pair.predictions(encoded, place, NUM_PREDICTIONS)
    return {
        "predictions": [
            {
                "token": one.token,
                "word": pair.spelling.word(one.token),
                "p": rounded(one.probability),
                "text": one.text,
            }
            for one in found.best
        ],
        "here": {"token": found.token, "p": rounded(found.probability), "rank": found.rank},
    }


def game_round(pairs: Sequence[Pair], fields: RequestFields) -> dict[str, Any]:
    """A round of the training game: a corrupted text, which tokens were replaced, and each discriminator's scores."""
    text, pair = fields.text(), pair_with_generator(pairs, fields)
    rate = fields.number("rate", 0.01, 0.9, 0.15)
    temperature = fields.number("temperature", 0.1, 10.0, 1.0)
    seed = fields.integer("seed", 0, 2**53 - 1, 0)  # what JavaScript can count
    fields.done()
    encoded = pair.encode(text)
    if all(token.is_special for token in encoded.tokens):
        raise RequestError("there is no word to replace: type a sentence first")
    played = pair.corrupt(encoded, rate, temperature, seed)
    parts = pair.spell(played.corrupted)
    scores = [scores_of_round(one, pair, played.corrupted, parts) for one in pairs]
    return {
        "tokens": [
            {
                "before": " " if part.startswith(" ") else "",
                "text": part.removeprefix(" "),
                "original": pair.spelling.word(token.token),
                "is_special": token.is_special,
                "is_chosen": played.is_chosen[place + 1],
                "is_replaced": played.is_replaced[place + 1],
                "p": [None if token.is_special else rounded(each[place]) for each in scores],
            }
            for place, (token, part) in enumerate(zip(encoded.tokens, parts, strict=True))
        ],
        "num_cut": encoded.num_cut,
    }


def scores_of_round(one: Pair, player: Pair, ids: Sequence[int], parts: Sequence[str]) -> Sequence[float | None]:
    """A discriminator's scores of a row of another pair's tokens; with another vocabulary it reads them as text."""
    if one.discriminator is None:
        return [None] * len(parts)
    can_read = one.vocabulary == player.vocabulary and len(ids) <= one.max_tokens
    return one.replaced(ids)[1:-1] if can_read else one.replaced_in(parts)


def pair_with_generator(pairs: Sequence[Pair], fields: RequestFields) -> Pair:
    pair = pairs[fields.integer("model", 0, len(pairs) - 1, 0)]
    if pair.generator is None:
        raise RequestError(f"{pair.name} has no generator, which this needs; start with --generator NAME", 409)
    return pair


def rounded(score: float | None) -> float | None:
    """JSON has no NaN, which a model that has diverged computes."""
    return None if score is None or not math.isfinite(score) else round(score, 6)


ENDPOINTS = {"tokens": tokens, "predictions": predictions, "round": game_round}
"""By the last part of the address."""

"""Pairs of sentences in, accuracies out: how often a network prefers the grammatical sentence of a minimal pair.

The layout is BLiMP's (Warstadt et al. 2020): .jsonl files with `sentence_good` and `sentence_bad` in each line, and where they are
known the paradigm (`UID`) and its phenomenon (`linguistics_term`). A sentence's score is the sum over its tokens.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from electrakit.common.errors import UserError
from electrakit.measure.open import OpenNetwork
from electrakit.measure.results import MinimalPairs
from electrakit.measure.token_scores import token_scores

MASKED_LM_LIMIT = 100
"""Pairs per file for a masked LM by default: it takes a pass for each token."""


@dataclass(frozen=True)
class Pair:
    good: str
    bad: str
    paradigm: str
    phenomenon: str | None


def read_pairs(place: Path) -> list[list[Pair]]:
    """The pairs of a .jsonl file, or of each .jsonl file of a folder."""
    paths = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    if not paths:
        raise UserError(f"--pairs {place} has no .jsonl file; name BLiMP's folder data/, or a file in its layout")
    return [read_file(path) for path in paths]


def read_file(path: Path) -> list[Pair]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"cannot read --pairs {path}: {reason}; name a .jsonl file, or a folder of them") from None
    pairs = [parse_pair(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise UserError(f"{path} has no pairs; each line is a JSON object with sentence_good and sentence_bad")
    return pairs


def parse_pair(line: str, path: Path, number: int) -> Pair:
    where = f"{path} line {number}"
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}; one object in each line is wanted") from None
    if not isinstance(fields, dict):
        raise UserError(f"{where} is not a JSON object with sentence_good and sentence_bad")

    def text_of(key: str, default: Any = None) -> Any:
        value = fields.get(key, default)
        if value is not default and (not isinstance(value, str) or not value.strip()):
            raise UserError(f"{where}: {key} is {value!r}; it must be a text")
        return value

    for key in ("sentence_good", "sentence_bad"):
        if key not in fields:
            raise UserError(f"{where} has no {key}; it has {', '.join(fields) or 'no keys'}")
    return Pair(
        text_of("sentence_good", ""),
        text_of("sentence_bad", ""),
        text_of("UID", path.stem),
        text_of("linguistics_term"),
    )


def minimal_pairs(network: OpenNetwork, files: Sequence[Sequence[Pair]], limit: int | None = None) -> MinimalPairs:
    """How often the good sentence of a pair scores higher; equal scores count a half.

    limit: pairs per file, evenly spaced; by default all of them, and 100 for a masked LM.
    """
    if limit is None and network.head == "words":
        limit = MASKED_LM_LIMIT
    pairs = list(chain.from_iterable(spaced(pairs, limit) for pairs in files))
    scores = sentence_scores(network, [text for pair in pairs for text in (pair.good, pair.bad)])
    differences = np.array(scores).reshape(-1, 2) @ [1, -1]
    is_right = np.where(differences == 0, 0.5, differences > 0)
    paradigms: dict[str, list[float]] = {}
    phenomena: dict[str, set[str]] = {}
    for pair, right in zip(pairs, is_right, strict=True):
        paradigms.setdefault(pair.paradigm, []).append(float(right))
        if pair.phenomenon is not None:
            phenomena.setdefault(pair.phenomenon, set()).add(pair.paradigm)
    means = {name: fmean(values) for name, values in paradigms.items()}
    # The paradigms are given; only the pairs are a sample.
    variance = sum(mean * (1 - mean) / len(paradigms[name]) for name, mean in means.items()) / len(means) ** 2
    return MinimalPairs(
        accuracy=fmean(means.values()),
        standard_error=math.sqrt(variance),
        num_pairs=len(pairs),
        num_of=sum(map(len, files)),
        phenomena={name: fmean(means[one] for one in inside) for name, inside in sorted(phenomena.items())},
        paradigms=means,
    )


def spaced(pairs: Sequence[Pair], limit: int | None) -> Iterable[Pair]:
    """At most so many, evenly spaced."""
    if limit is None or limit >= len(pairs):
        return pairs
    return [pairs[place] for place in np.linspace(0, len(pairs) - 1, limit).round().astype(int)]


def sentence_scores(network: OpenNetwork, texts: Sequence[str]) -> list[float]:
    """The sum of the scores of each sentence's tokens, without [CLS] and [SEP]."""
    return sums_over_tokens(network, [tuple(row) for row in network.encode(texts)], "minimal pairs")


def sums_over_tokens(network: OpenNetwork, rows: Sequence[tuple[int, ...]], title: str) -> list[float]:
    """Of rows of ids between [CLS] and [SEP]. Equal rows are computed once."""
    distinct = list(dict.fromkeys(rows))
    positions = [range(1, len(row) - 1) for row in distinct]
    scores = token_scores(network, distinct, positions, title)
    sums = {row: float(one.sum()) for row, one in zip(distinct, scores, strict=True)}
    return [sums[row] for row in rows]

"""Shards in, counts out: how often each token stands in the train split, and each pair of tokens at a given distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from electrakit.data.batches import Batches

MAX_TOKENS = 25_000_000
CHUNK_TOKENS = 2**21  # sorted at a time
MAX_PAIRS = 2**25  # distinct ones: more than MAX_TOKENS can have


class Pairs(NamedTuple):
    """The tokens that were seen beside each token, in order, as a sparse matrix (V, V) by rows."""

    starts: np.ndarray
    """int64 (V + 1,): where the entries of each token begin."""
    others: np.ndarray
    """int32 (N,)"""
    counts: np.ndarray
    """int32 (N,)"""

    def of(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that were seen beside it, each once, and how often."""
        entries = slice(self.starts[token], self.starts[token + 1])
        return self.others[entries], self.counts[entries]


@dataclass(frozen=True)
class TokenCounts:
    """How often each token was seen, and which were seen with it in the same row. [PAD], [CLS], [SEP] and [MASK] take no part."""

    tokens: np.ndarray
    """int64 (V,)"""
    after: dict[int, Pairs]
    """By distance d: `after[d].of(token)` are the tokens d places to the right of it."""
    before: dict[int, Pairs]
    """By distance d: those d places to the left."""


def count_pairs(shards: str | Path, distances: Sequence[int] = (1,), max_tokens: int = MAX_TOKENS) -> TokenCounts:
    """Count the tokens and pairs of the train split; of a larger one about `max_tokens`, in rows spread evenly over it.

    Where there are more than `MAX_PAIRS` distinct pairs, which takes more tokens than the default, those seen once are
    dropped, then those seen twice, until they fit.
    """
    assert all(distance > 0 for distance in distances)
    # Unverified: to hash the files of a large corpus takes longer than to count, and training does it anyway.
    batches = Batches(shards, 1, verify=False)
    num_rows = max(1, max_tokens // batches.length)
    is_counted = np.ones(batches.vocab_size, bool)
    is_counted[[number for name, number in batches.special_ids.items() if name != "unk"]] = False  # it is a word
    tokens = np.zeros(batches.vocab_size, np.int64)
    for rows in batches.chunks(_rows_per_chunk(batches), num_rows):
        tokens += np.bincount(rows.ravel(), minlength=batches.vocab_size)
    after, before = {}, {}
    for distance in distances:
        left, right, counts = _count_at(distance, batches, num_rows, is_counted)
        after[distance] = _pairs(left, right, counts, batches.vocab_size)
        order = np.argsort(right, kind="stable")
        before[distance] = _pairs(right[order], left[order], counts[order], batches.vocab_size)
    return TokenCounts(tokens * is_counted, after, before)


def _count_at(
    distance: int, batches: Batches, num_rows: int, is_counted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct pairs, sorted: left (N,), right (N,), counts (N,)."""
    vocab_size = batches.vocab_size
    dtype = np.uint32 if vocab_size <= 2**16 else np.uint64  # of left * V + right: the narrow one sorts twice as fast
    parts = []
    for rows in batches.chunks(_rows_per_chunk(batches), num_rows):
        is_pair = is_counted[rows]
        is_pair = is_pair[:, :-distance] & is_pair[:, distance:]
        left, right = rows[:, :-distance][is_pair].astype(dtype), rows[:, distance:][is_pair]
        keys, numbers = np.unique(left * dtype(vocab_size) + right, return_counts=True)
        parts.append((keys, numbers.astype(np.int32)))
        if sum(len(keys) for keys, _ in parts) > 2 * MAX_PAIRS:
            parts = [_merged(parts)]
    keys, counts = _merged(parts)
    left, right = np.divmod(keys, dtype(vocab_size))
    return left.astype(np.int32), right.astype(np.int32), counts


def _merged(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys, each once, and their counts; at most `MAX_PAIRS`."""
    keys, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    is_first = np.diff(keys, prepend=keys[:1] + 1) != 0
    keys, counts = keys[is_first], np.add.reduceat(counts, np.flatnonzero(is_first))
    rare = 0
    while len(keys) > MAX_PAIRS:
        rare += 1
        keys, counts = keys[counts > rare], counts[counts > rare]
    return keys, counts


def _pairs(tokens: np.ndarray, others: np.ndarray, counts: np.ndarray, vocab_size: int) -> Pairs:
    """Of entries that are sorted by token."""
    return Pairs(np.searchsorted(tokens, np.arange(vocab_size + 1)), others, counts)


def _rows_per_chunk(batches: Batches) -> int:
    return max(1, CHUNK_TOKENS // batches.length)

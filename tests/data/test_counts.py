"""Counts: those of a slow loop over the rows, in both directions, for any vocabulary and memory."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit.data import counts as counts_module
from electrakit.data.batches import Batches
from electrakit.data.counts import Pairs, TokenCounts, count_pairs
from tests.helpers.tiny_shards import SPECIAL, write_rows

UNCOUNTED = set(SPECIAL.values()) - {SPECIAL["unk"]}


def slow_pairs(rows: np.ndarray, distance: int) -> Counter:
    found: Counter = Counter()
    for row in rows.tolist():
        for left, right in zip(row, row[distance:], strict=False):
            if not {left, right} & UNCOUNTED:
                found[left, right] += 1
    return found


def as_counter(pairs: Pairs, vocab_size: int) -> Counter:
    found: Counter = Counter()
    assert len(pairs.starts) == vocab_size + 1 and pairs.starts[-1] == len(pairs.others)
    for token in np.flatnonzero(np.diff(pairs.starts)).tolist():
        others, counts = pairs.of(token)
        assert (np.diff(others) > 0).all()  # in order, each once
        found.update({(token, other): count for other, count in zip(others.tolist(), counts.tolist(), strict=True)})
    return found


def assert_equal_to_slow(counts: TokenCounts, rows: np.ndarray, vocab_size: int) -> None:
    tokens = np.bincount(rows.ravel(), minlength=vocab_size)
    tokens[list(UNCOUNTED)] = 0
    assert counts.tokens.tolist() == tokens.tolist()
    for distance, pairs in counts.after.items():
        slow = slow_pairs(rows, distance)
        assert as_counter(pairs, vocab_size) == slow
        turned = Counter({(right, left): count for (left, right), count in slow.items()})
        assert as_counter(counts.before[distance], vocab_size) == turned


@given(
    seed=st.integers(0, 2**32 - 1),
    files=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    length=st.integers(1, 12),
    vocab_size=st.sampled_from([6, 9, 40, 2**16 + 5]),
    chunk=st.integers(1, 60),
    distances=st.lists(st.integers(1, 13), unique=True, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_a_slow_loop(seed, files, length, vocab_size, chunk, distances):
    random = np.random.default_rng(seed)
    few = np.array([*range(6), vocab_size - 1])  # pairs repeat
    rows = [random.choice(few, (num, length)) for num in files]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts_module, "CHUNK_TOKENS", chunk)
        counts = count_pairs(write_rows(Path(folder), vocab_size, train=rows), distances)
    assert set(counts.after) == set(counts.before) == set(distances)
    assert_equal_to_slow(counts, np.concatenate(rows), vocab_size)


def test_of_many_tokens_rows_are_spread_evenly_over_the_split(tmp_path):
    files = [np.random.default_rng(number).integers(0, 30, (num, 10)) for number, num in enumerate((70, 1, 29))]
    shards = write_rows(tmp_path, 30, train=files)
    rows = np.concatenate(files)[np.arange(25) * 4]
    assert_equal_to_slow(count_pairs(shards, (1, 2), max_tokens=250), rows, 30)
    assert np.array_equal(np.concatenate(list(Batches(shards, 1).chunks(7, 25))), rows)


def test_too_many_distinct_pairs_lose_the_rare_ones(tmp_path, monkeypatch):
    common = np.tile([5, 6], (20, 5))
    rare = np.random.default_rng(0).integers(7, 1000, (40, 10))
    shards = write_rows(tmp_path, 1000, train=[common, rare])
    monkeypatch.setattr(counts_module, "MAX_PAIRS", 50)
    monkeypatch.setattr(counts_module, "CHUNK_TOKENS", 100)
    pairs = count_pairs(shards).after[1]
    assert len(pairs.counts) <= 50
    assert dict(zip(*(array.tolist() for array in pairs.of(5)), strict=True)) == {6: 100}

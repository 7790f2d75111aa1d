"""Fixed corruptions: whole words only, never to themselves, drawn as the counts say, and the same for everybody."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.metrics import roc_auc_score

from electrakit.data.batches import Batches
from electrakit.data.corruptions import (
    MIN_DISTANCE,
    RATE,
    SMOOTHING,
    WAYS,
    CorruptedRows,
    WordModel,
    as_frequent,
    corrupt_row,
    corrupted_rows,
    draw_another,
    is_continuation,
)
from electrakit.data.counts import count_pairs
from electrakit.data.manifest import read_manifest
from electrakit.data.tokenizer_files import load_tokenizer
from tests.helpers.tiny_shards import SPECIAL, write_rows

NUM_ROWS = 12


@pytest.fixture(scope="module")
def corrupted(shards: Path) -> dict[str, CorruptedRows]:
    return corrupted_rows(shards, NUM_ROWS)


@pytest.fixture(scope="module")
def originals(shards: Path) -> np.ndarray:
    return Batches(shards, NUM_ROWS, split="valid", seed=0)(0)


@pytest.fixture(scope="module")
def vocabulary(shards: Path) -> list[str]:
    return load_tokenizer(shards / "tokenizer").vocabulary


def whole_words(vocabulary: list[str], row: np.ndarray) -> list[int]:
    """Places of tokens that are whole words."""
    tokens = [vocabulary[number] for number in row]
    return [
        place
        for place, token in enumerate(tokens[:-1])
        if not token.startswith(("##", "[")) and not tokens[place + 1].startswith("##")
    ]


@pytest.mark.parametrize("way", WAYS)
def test_only_whole_words_are_changed_and_as_many_others_are_scored(vocabulary, corrupted, originals, way):
    ids, is_changed, is_scored = corrupted[way]
    assert ids.shape == is_changed.shape == is_scored.shape == originals.shape
    assert np.array_equal(is_changed, ids != originals) and (is_scored >= is_changed).all()
    for row, changed, scored, original in zip(ids, is_changed, is_scored, originals, strict=True):
        words = whole_words(vocabulary, original)
        assert set(np.flatnonzero(scored)) <= set(words)
        assert scored.sum() == 2 * changed.sum() <= 2 * round(RATE * len(words) + 0.5)
        assert not any(vocabulary[token].startswith(("##", "[")) for token in row[changed])
        together = 2 if way == "swapped" else 1
        runs = Counter(np.cumsum(~changed)[changed].tolist())
        assert set(runs.values()) <= {together}
    assert 0.1 < is_changed.sum() / sum(len(whole_words(vocabulary, row)) for row in originals) < 0.2


def test_swapped_words_have_changed_places(corrupted, originals):
    ids, is_changed, _ = corrupted["swapped"]
    for row, changed, original in zip(ids, is_changed, originals, strict=True):
        firsts, seconds = np.flatnonzero(changed).reshape(-1, 2).T
        assert np.array_equal(seconds, firsts + 1)
        assert np.array_equal(row[firsts], original[seconds]) and np.array_equal(row[seconds], original[firsts])


def test_words_from_elsewhere_stand_in_the_row_and_not_near(vocabulary, corrupted, originals):
    ids, is_changed, _ = corrupted["elsewhere"]
    for number, place in np.argwhere(is_changed).tolist():
        far = [other for other in whole_words(vocabulary, originals[number]) if abs(other - place) >= MIN_DISTANCE]
        assert ids[number, place] in originals[number, far]


def test_they_repeat_and_a_row_does_not_depend_on_their_number(shards, corrupted):
    for way, few in corrupted_rows(shards, 5).items():
        for one, other in zip(few, corrupted[way], strict=True):
            assert np.array_equal(one, other[:5])
    assert not np.array_equal(corrupted_rows(shards, 5, seed=1)["frequency"].ids, corrupted["frequency"].ids[:5])


def test_fewer_rows_where_the_valid_split_is_small_and_none_without_one(shards, tmp_path):
    num_valid = read_manifest(shards).num_rows["valid"]
    assert len(corrupted_rows(shards, 10_000)["swapped"].ids) == num_valid
    none = corrupted_rows(write_rows(tmp_path, 50, train=[np.full((3, 9), 7)]))
    assert set(none) == set(WAYS) and all(array.shape == (0, 9) for rows in none.values() for array in rows)


def test_rows_without_words_or_with_one_word_again_and_again_are_left_as_they_are(tmp_path):
    rows = np.array([[2, 3, *[0] * 18], [2, *[7] * 18, 3]])
    for found in corrupted_rows(write_rows(tmp_path, 8, train=[rows], valid=[rows])).values():
        assert not found.is_changed.any() and not found.is_scored.any()


@pytest.fixture(scope="module")
def words(shards: Path) -> WordModel:
    manifest = read_manifest(shards)
    return WordModel(count_pairs(shards), is_continuation(shards, manifest), manifest.special_ids)


def row_of_words(words: WordModel, rows: np.ndarray) -> np.ndarray:
    """The row with most whole words."""
    return max(rows, key=lambda row: words.whole_words(row).sum())


def test_frequencies_are_those_of_whole_words(shards, vocabulary, words):
    batches = Batches(shards, 1, shuffle=False)
    rows = [batches(number)[0] for number in range(batches.num_rows)]
    seen = Counter(row[place] for row in rows for place in whole_words(vocabulary, row))
    assert words.frequencies == pytest.approx([seen[token] / seen.total() for token in range(batches.vocab_size)])


def test_fits_between_neighbours_follow_the_formula(shards, vocabulary, words, originals):
    batches = Batches(shards, 1, shuffle=False)
    pairs = Counter()
    for number in range(batches.num_rows):
        row = batches(number)[0].tolist()
        pairs.update(pair for pair in pairwise(row) if not {0, 2, 3, 4} & set(pair))
    row = row_of_words(words, originals)
    for place in whole_words(vocabulary, row)[:4]:
        left, right = row[place - 1], row[place + 1]
        slow = [
            (pairs[left, word] + SMOOTHING * p) * (pairs[word, right] + SMOOTHING * p) / p if p else 0
            for word, p in enumerate(words.frequencies)
        ]
        assert words.between(left, right) == pytest.approx(slow)


def test_draws_follow_the_weights_without_the_token_itself(words):
    random = np.random.default_rng(0)
    weights = words.frequencies
    token = int(weights.argmax())
    drawn = np.bincount([draw_another(token, weights, random) for _ in range(5_000)], minlength=len(weights))
    assert drawn[token] == 0 and not drawn[weights == 0].any()
    expected = np.delete(weights, token)
    common = expected * 5_000 > 5 * expected.sum()
    seen, wanted = np.delete(drawn, token), 5_000 * expected / expected.sum()
    groups = [*seen[common], seen[~common].sum()], [*wanted[common], wanted[~common].sum()]
    assert chisquare(*(np.array(group)[np.array(groups[1]) > 0] for group in groups)).pvalue > 1e-3
    assert draw_another(7, np.eye(9)[7], random) == 7


def test_neighbours_are_drawn_by_how_they_fit(words, originals):
    """Over many seeds, the draws at a place have the probabilities of the n-gram model without the original."""
    row, drawn = row_of_words(words, originals), Counter()
    for seed in range(300):
        found = corrupt_row(row, words, np.random.default_rng(seed))["neighbours"]
        drawn.update((place, int(found.ids[place])) for place in np.flatnonzero(found.is_changed).tolist())
    score = variance = 0.0
    for place in {place for place, _ in drawn}:
        weights = words.between(row[place - 1], row[place + 1])
        weights[row[place]] = 0
        shares = weights / weights.sum()
        number = sum(count for (other, _), count in drawn.items() if other == place)
        surprise = -np.log(np.where(shares > 0, shares, 1))
        mean = (shares * surprise).sum()
        score += sum(count * surprise[token] for (other, token), count in drawn.items() if other == place)
        score -= number * mean
        variance += number * ((shares * surprise**2).sum() - mean**2)
    assert len(drawn) > 20 and abs(score) < 4 * variance**0.5


def test_what_is_scored_beside_a_change_is_as_frequent():
    frequencies = np.array([0.5, 0.2, 0.1, 0.1, 0.01, 0.001, 0.0])
    others = np.array([6, 5, 4, 3, 2, 1, 0])
    assert others[as_frequent(np.array([0, 5, 2, 2]), others, frequencies)].tolist() == [0, 5, 3, 2]
    assert others[as_frequent(np.array([0, 0]), others, frequencies)].tolist() == [0, 1]


def test_frequency_alone_does_not_tell_what_was_changed(tmp_path):
    """A language without grammar: nothing else is to be known."""
    random = np.random.default_rng(0)
    share = 1 / np.arange(1, 301)
    rows = 5 + random.choice(300, (600, 64), p=share / share.sum())
    rows[:, [0, -1]] = SPECIAL["cls"], SPECIAL["sep"]
    shards = write_rows(tmp_path, 305, train=[rows[:400]], valid=[rows[400:]])
    frequencies = count_pairs(shards, ()).tokens
    for ids, is_changed, is_scored in corrupted_rows(shards, 200).values():
        assert roc_auc_score(is_changed[is_scored], frequencies[ids[is_scored]]) == pytest.approx(0.5, abs=0.01)


def test_special_tokens_are_never_drawn(words):
    assert not words.frequencies[list(SPECIAL.values())].any()

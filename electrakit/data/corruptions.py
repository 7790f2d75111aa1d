"""Shards in, corrupted rows out: rows of the valid split with words exchanged in four fixed ways, the same for every model.

No network makes them, so models of any objective can be compared by how well they find what was changed.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from electrakit.common import word_marks
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.data.batches import Batches
from electrakit.data.counts import TokenCounts, count_pairs
from electrakit.data.manifest import Manifest, read_manifest
from electrakit.data.tokenizer_files import has_tokenizer_files, load_tokenizer

RATE = 0.15  # of the words: as ELECTRA masks
SMOOTHING = 1000.0  # of 5 to 10,000 the best on unseen English (4.19 nats; 300: 4.20, 3,000: 4.27), 24 M tokens counted
MIN_DISTANCE = 8  # of a word from elsewhere
WAYS = ("frequency", "neighbours", "swapped", "elsewhere")


class CorruptedRows(NamedTuple):
    """Rows in which some words were changed."""

    ids: np.ndarray
    """int64 (N, T)"""
    is_changed: np.ndarray
    """bool (N, T)"""
    is_scored: np.ndarray
    """bool (N, T): the changed words, and as many unchanged ones of the same row that are about as frequent."""


def corrupted_rows(shards: str | Path, num_rows: int = 256, seed: int = 0) -> dict[str, CorruptedRows]:
    """The first rows of the shuffled valid split, with 15 % of the words changed in each of four ways.

    - `frequency`: to words drawn by their frequency in the train split.
    - `neighbours`: to words drawn from a smoothed n-gram model of both neighbours, so that only wider context tells.
    - `swapped`: two neighbours have changed places; both count.
    - `elsewhere`: to words of the same row, at least 8 tokens away.

    A word here is a token that is a whole word, since a lone piece of one would give a change away; special tokens are
    none. No word is changed to itself, and none beside another changed one, except the two that are swapped. Changed and
    unchanged words that are scored are equally frequent: a model that knows only frequencies has an AUC of .50 on each
    way. A row does not depend on how many there are. Where the valid split has fewer rows there are fewer, or none.
    """
    shards = Path(shards)
    manifest = read_manifest(shards)
    num_rows = min(num_rows, manifest.num_rows.get("valid", 0))
    if num_rows == 0:
        none = np.zeros((0, manifest.length), np.int64)
        return {way: CorruptedRows(none, none > 0, none > 0) for way in WAYS}
    rows = Batches(shards, num_rows, split="valid", seed=0)(0)
    words = WordModel(count_pairs(shards), is_continuation(shards, manifest), manifest.special_ids)
    found: dict[str, list[CorruptedRows]] = {way: [] for way in WAYS}
    for number, row in enumerate(rows):
        random = np.random.default_rng([seed, number])
        for way, corrupted in corrupt_row(row, words, random).items():
            found[way].append(corrupted)
    return {way: CorruptedRows(*map(np.stack, zip(*each, strict=True))) for way, each in found.items()}


def is_continuation(shards: Path, manifest: Manifest) -> np.ndarray:
    """The tokens that continue a word, bool (V,); none in shards without a tokenizer."""
    table = np.zeros(manifest.vocab_size, bool)
    if has_tokenizer_files(shards / SHARDS_TOKENIZER):
        vocabulary = load_tokenizer(shards / SHARDS_TOKENIZER).vocabulary
        mark = word_marks.word_mark(vocabulary)
        table[[number for number, token in enumerate(vocabulary) if word_marks.is_continuation(token, mark)]] = True
    return table


class WordModel:
    """Which tokens are whole words, how frequent these are, and which fit between two neighbours."""

    def __init__(self, counts: TokenCounts, is_continuation: np.ndarray, special_ids: dict[str, int]) -> None:
        self.counts, self.is_continuation = counts, is_continuation
        self.is_word = ~is_continuation
        self.is_word[list(special_ids.values())] = False
        # A token that a piece follows is the beginning of a word, not a word.
        after = counts.after[1]
        is_begun = np.where(is_continuation[after.others], after.counts, 0)
        num_begun = np.diff(np.concatenate([[0], np.cumsum(is_begun)])[after.starts])
        num_seen = np.where(self.is_word, counts.tokens - num_begun, 0)
        self.frequencies = num_seen / max(1, num_seen.sum())  # (V,)

    def whole_words(self, row: np.ndarray) -> np.ndarray:
        """Where in the row (T,) a token is a whole word, and has a neighbour on both sides: bool (T,)."""
        is_whole = np.zeros(len(row), bool)
        is_whole[1:-1] = self.is_word[row[1:-1]] & ~self.is_continuation[row[2:]]
        return is_whole

    def between(self, left: int, right: int) -> np.ndarray:
        """How well each word fits between two tokens, from counts of pairs: (V,), not normalised.

        p(word | left) p(word | right) / p(word), each smoothed with the frequencies. Special tokens say nothing.
        """
        fits_left, fits_right = SMOOTHING * self.frequencies, SMOOTHING * self.frequencies
        for fits, (others, counts) in (
            (fits_left, self.counts.after[1].of(left)),
            (fits_right, self.counts.before[1].of(right)),
        ):
            fits[others] += counts
        known = self.frequencies > 0
        return np.divide(fits_left * fits_right, self.frequencies, out=np.zeros(len(known)), where=known)


def corrupt_row(row: np.ndarray, words: WordModel, random: np.random.Generator) -> dict[str, CorruptedRows]:
    """One row (T,) changed in each way; its arrays are (T,) too."""
    is_whole = words.whole_words(row)
    places = np.flatnonzero(is_whole)
    starts = places[is_whole[places + 1] & (row[places] != row[places + 1])]  # of two words side by side
    singles = choose_apart(places, round(RATE * len(places)), 2, random)
    pairs = choose_apart(starts, round(RATE * len(places) / 2), 3, random)
    changes = {way: row.copy() for way in WAYS}
    for place in singles.tolist():
        fitting = words.between(row[place - 1], row[place + 1])
        elsewhere = row[places[np.abs(places - place) >= MIN_DISTANCE]]
        changes["frequency"][place] = draw_another(row[place], words.frequencies, random)
        changes["neighbours"][place] = draw_another(row[place], fitting, random)
        if len(others := elsewhere[elsewhere != row[place]]):
            changes["elsewhere"][place] = random.choice(others)
    changes["swapped"][pairs], changes["swapped"][pairs + 1] = row[pairs + 1], row[pairs]
    found = {}
    for way, ids in changes.items():
        is_changed = ids != row
        others = random.permutation(np.flatnonzero(is_whole & ~is_changed))
        is_scored = is_changed.copy()
        is_scored[others[as_frequent(ids[is_changed], row[others], words.frequencies)]] = True
        found[way] = CorruptedRows(ids, is_changed, is_scored)
    return found


def as_frequent(tokens: np.ndarray, others: np.ndarray, frequencies: np.ndarray) -> list[int]:
    """The places of as many others, each the one left that is nearest to one of the tokens in log frequency."""
    wanted, left = (np.log(frequencies[each] + 1e-9) for each in (tokens, others))
    taken: list[int] = []
    for one in wanted:
        taken.append(int(np.abs(left - one).argmin()))
        left[taken[-1]] = np.inf
    return taken


def choose_apart(places: np.ndarray, number: int, distance: int, random: np.random.Generator) -> np.ndarray:
    """At most so many of the places, in random order, each at least `distance` from the others."""
    chosen: list[int] = []
    for place in random.permutation(places).tolist():
        if len(chosen) < number and all(abs(place - other) >= distance for other in chosen):
            chosen.append(place)
    return np.array(chosen, np.int64)


def draw_another(token: int, weights: np.ndarray, random: np.random.Generator) -> int:
    """Another token than this one, drawn by weights (V,); this one if no other has a weight."""
    weights = weights.copy()
    weights[token] = 0
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, random.random() * sums[-1], side="right")) if sums[-1] else token

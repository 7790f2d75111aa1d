"""Words and their counts in, pieces and their scores out: learns a unigram language model (Kudo 2018), the same every time.

The trainer of `tokenizers` adds floating-point numbers in the order of a hash table and of its threads, so no two of its results are
equal. Here the words are sorted, and all sums are made in that order. Forward and backward sums run over all words at once, one
character at a time, in plain probabilities: a word is at most 24 characters, each of at least e^-20, which float64 holds.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

SPACE = "▁"  # stands for the space before a word
MAX_PIECE = 16  # characters, as in SentencePiece
MAX_WORD = 24  # longer ones are cut, for training only
MAX_CHARACTERS = 4_000_000  # of different words, the most frequent first: bounds memory and time
MAX_COUNTED = 200_000_000  # characters of the words that are counted: without spaces, each sentence is another word
ENTRY = 50  # characters that need as much memory as a word's entry in a dictionary
MAX_SEEDS = 1_000_000
SEEDS_PER_PIECE = 10
FEWEST_EXPECTED = 0.5  # a piece that is expected less often is dropped (Kudo and Richardson 2018, their code)
KEEP_SHARE = 0.75  # of the pieces, in each round
NUM_EM = 2  # per round
LOWEST_SCORE = -20.0  # in nats
DECIMALS = 9  # of a probability's logarithm: what processors round differently is cut off


def learn_pieces(
    words: dict[str, int], alphabet: set[str], num_pieces: int, min_frequency: int
) -> list[tuple[str, float]]:
    """The pieces with their log probabilities, best first. All of the alphabet is among them; `words` are without SPACE."""
    lattice, texts = _seed(_runs(words, alphabet), alphabet, num_pieces, min_frequency)
    scores = np.log(np.maximum(1, lattice.frequencies(len(texts))) / lattice.counts.sum())
    while True:
        for _ in range(NUM_EM):
            expected = lattice.expected(_probabilities(scores))
            keep = expected >= FEWEST_EXPECTED
            keep[: len(alphabet)] = True  # the characters are the first pieces, always
            lattice, texts, expected = lattice.only(keep), _chosen(texts, keep), expected[keep]
            scores = digamma(np.maximum(expected, FEWEST_EXPECTED)) - digamma(expected.sum())
        if len(texts) <= max(num_pieces, int(1.1 * num_pieces)):
            break
        size = max(int(1.1 * num_pieces), int(KEEP_SHARE * len(texts)))
        keep = _highest(_losses(texts, len(alphabet), scores, expected), size)
        lattice, texts, scores = lattice.only(keep), _chosen(texts, keep), scores[keep]
    scores = np.log(_probabilities(scores)).round(6)
    is_character = np.arange(len(texts)) < len(alphabet)
    chosen = np.flatnonzero(_highest(np.where(is_character, np.inf, scores), num_pieces))
    return sorted(((texts[place], float(scores[place])) for place in chosen), key=lambda pair: (-pair[1], pair[0]))


def smallest_alphabet(alphabet: set[str]) -> set[str]:
    """With the space and printable ASCII, so that no special token's text is ever better read as that token."""
    return {*alphabet, SPACE, *map(chr, range(0x21, 0x7F))}


# --- words ---


def count_words(texts: Iterable[str], max_size: int = MAX_COUNTED) -> dict[str, int]:
    """How often each word occurs. Of more words than fit the rarest are forgotten, so that memory is bounded."""
    words: Counter[str] = Counter()
    room = max_size
    for text in texts:
        found = text.split(" ")
        words.update(found)
        room -= len(text) + ENTRY * len(found)  # if all were new
        if room < 0:
            while (size := sum(map(len, words)) + ENTRY * len(words)) > max_size // 2:
                ordered = _by_frequency(words)
                words = Counter(dict(ordered[: len(ordered) // 2]))
            room = max_size - size
    del words[""]
    return words


def _by_frequency(words: dict[str, int]) -> list[tuple[str, int]]:
    """The most frequent first. Of equal ones the order is by hash: the first of them are a fair sample, of all alphabets."""
    return sorted(words.items(), key=lambda pair: (-pair[1], xxh3_64_intdigest(pair[0].encode())))


def _runs(words: dict[str, int], alphabet: set[str]) -> dict[str, int]:
    """Parts of the words that a piece may span: of one script, of digits, or of neither; sorted."""
    found: dict[str, int] = {}
    num_characters = 0
    for word, count in _by_frequency(words):
        for run in _cut(SPACE + word, alphabet):
            if run not in found:
                num_characters += len(run)
            found[run] = found.get(run, 0) + count
        if num_characters > MAX_CHARACTERS:
            break
    return dict(sorted(found.items()))


def _cut(word: str, alphabet: set[str]) -> Iterable[str]:
    run, script = "", ""
    for character in word:
        here = script_of(character) or script  # a mark belongs to what stands before it
        is_next = run not in ("", SPACE) and here != script
        if run and (character not in alphabet or is_next or len(run) == MAX_WORD):
            yield run
            run = ""
        if character in alphabet:
            run += character
            script = here if character != SPACE else ""
    if run:
        yield run


@cache
def script_of(character: str) -> str:
    """The script of a letter, "digits" or "symbols"; "" for marks and joiners, which belong to any."""
    category = unicodedata.category(character)
    if category[0] == "M" or category == "Cf":
        return ""
    if category[0] == "N":
        return "digits"
    if category[0] != "L":
        return "symbols"
    # Kana and Han are one: Japanese mixes them.
    script = unicodedata.name(character, "UNKNOWN").split(" ")[0].split("-")[0]
    return "CJK" if script in ("HIRAGANA", "KATAKANA", "HALFWIDTH", "IDEOGRAPHIC") else script


# --- the lattice of all ways to cut the words ---


@dataclass(frozen=True)
class Lattice:
    """Every occurrence of a piece in a word is an edge. Places are those of one array of all words, one place more than characters each."""

    counts: np.ndarray
    """Of each word."""
    starts: np.ndarray
    """The first place of each word, and the end of the last."""
    pieces: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    """Of each edge; sorted by where it ends in its word, then by its places."""
    by_end: np.ndarray
    """Where the edges begin that end after so many characters of their word."""
    order: np.ndarray
    """The edges, sorted by where they begin in their word, then by their places."""
    by_begin: np.ndarray
    """Where the edges begin in that order that begin after so many characters."""

    @classmethod
    def of(
        cls, counts: np.ndarray, starts: np.ndarray, pieces: np.ndarray, begins: np.ndarray, ends: np.ndarray
    ) -> "Lattice":
        first = starts[np.searchsorted(starts, begins, side="right") - 1]
        order = np.lexsort((begins, ends, ends - first))
        pieces, begins, ends, first = (each[order] for each in (pieces, begins, ends, first))
        by_end = np.searchsorted(ends - first, np.arange(MAX_WORD + 2))
        order = np.lexsort((ends, begins, begins - first))
        by_begin = np.searchsorted((begins - first)[order], np.arange(MAX_WORD + 2))
        return cls(counts, starts, pieces, begins, ends, by_end, order, by_begin)

    def only(self, keep: np.ndarray) -> "Lattice":
        """Without the edges of other pieces; those that are kept get new numbers in the same order."""
        if keep.all():
            return self
        is_left = keep[self.pieces]
        num_left = np.concatenate([[0], np.cumsum(is_left)])  # before each edge
        is_left_in_order = is_left[self.order]
        return Lattice(
            self.counts,
            self.starts,
            (np.cumsum(keep) - 1)[self.pieces[is_left]],
            self.begins[is_left],
            self.ends[is_left],
            num_left[self.by_end],
            num_left[self.order[is_left_in_order]],
            np.concatenate([[0], np.cumsum(is_left_in_order)])[self.by_begin],
        )

    @property
    def words(self) -> np.ndarray:
        """The word of each edge."""
        return np.searchsorted(self.starts, self.begins, side="right") - 1

    def frequencies(self, num_pieces: int) -> np.ndarray:
        """How often each piece occurs times its length: the score of a seed."""
        return np.bincount(self.pieces, self.counts[self.words] * (self.ends - self.begins), num_pieces)

    def forward(self, weights: np.ndarray) -> np.ndarray:
        """The probability of all ways to reach each place, given that of each edge."""
        total = np.zeros(self.starts[-1])
        total[self.starts[:-1]] = 1
        for offset in range(1, MAX_WORD + 1):
            edges = slice(self.by_end[offset], self.by_end[offset + 1])
            _add_up(total, self.ends[edges], total[self.begins[edges]] * weights[edges])
        return total

    def backward(self, weights: np.ndarray) -> np.ndarray:
        """The probability of all ways to go on from each place."""
        total = np.zeros(self.starts[-1])
        total[self.starts[1:] - 1] = 1
        for offset in range(MAX_WORD - 1, -1, -1):
            edges = self.order[self.by_begin[offset] : self.by_begin[offset + 1]]
            _add_up(total, self.begins[edges], total[self.ends[edges]] * weights[edges])
        return total

    def expected(self, probabilities: np.ndarray) -> np.ndarray:
        """How often each piece is expected in the text."""
        weights, words = probabilities[self.pieces], self.words
        forward, backward = self.forward(weights), self.backward(weights)
        share = forward[self.begins] * weights * backward[self.ends] / backward[self.starts[:-1]][words]
        return np.bincount(self.pieces, share * self.counts[words], len(probabilities))


def _add_up(total: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Write the sum of the values of each place, which are neighbours. One after the other: the sums are the same everywhere."""
    is_new = np.diff(places, prepend=-1) != 0
    total[places[is_new]] = np.bincount(np.cumsum(is_new) - 1, values)


@dataclass(frozen=True)
class Joined:
    """Words one after the other, and the strings in them, longer by a character at a time."""

    starts: np.ndarray
    """The first place of each word, and the end of the last."""
    letters: np.ndarray
    """The number of each place's character; -1 at the end of a word."""
    num_letters: int

    @classmethod
    def of(cls, text: str, alphabet: list[str]) -> "Joined":
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        numbers = np.full(0x110000, -1)
        numbers[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
        starts = np.concatenate([[0], np.flatnonzero(codes == ord("\n")) + 1])
        return cls(starts, numbers[codes], len(alphabet))

    def characters(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each begins, and its number."""
        places = np.flatnonzero(self.letters >= 0)
        return places, self.letters[places]

    def longer(self, places: np.ndarray, ids: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Strings of this length, from those that are a character shorter: where each begins, and its number, sorted by its text."""
        is_inside = self.letters[places + length - 1] >= 0
        places, ids = places[is_inside], ids[is_inside]
        keys = ids * self.num_letters + self.letters[places + length - 1]
        return places, np.unique(keys, return_inverse=True)[1]


def _seed(runs: dict[str, int], alphabet: set[str], num_pieces: int, min_frequency: int) -> tuple[Lattice, list[str]]:
    """The lattice of the strings that occur most, by count times length, and these strings; the alphabet comes first."""
    letters = sorted(alphabet)
    text = "".join(f"{run}\n" for run in runs)
    joined = Joined.of(text, letters)
    counts = np.fromiter(runs.values(), np.int64, len(runs))
    weights = np.repeat(counts, np.diff(joined.starts))
    places, ids = joined.characters()
    found = [(places, ids)]  # for each length
    values = [np.full(len(letters), np.inf)]  # characters stay
    for length in range(2, MAX_PIECE + 1):
        places, ids = joined.longer(places, ids, length)
        frequency = np.bincount(ids, weights[places])
        is_frequent = frequency >= min_frequency
        places, ids = places[is_frequent[ids]], (np.cumsum(is_frequent) - 1)[ids[is_frequent[ids]]]
        if not len(places):
            break
        found.append((places, ids))
        values.append(frequency[is_frequent] * length)
    num_seeds = min(MAX_SEEDS, max(SEEDS_PER_PIECE * num_pieces, 10_000))
    keep = _highest(np.concatenate(values), max(num_seeds, len(letters)))

    texts, edges = letters, [(found[0][1], found[0][0], found[0][0] + 1)]
    keep_of_lengths = np.split(keep, np.cumsum([len(each) for each in values])[:-1])
    for length, ((places, ids), keep) in enumerate(zip(found[1:], keep_of_lengths[1:], strict=True), 2):
        places, ids = places[keep[ids]], (np.cumsum(keep) - 1)[ids[keep[ids]]]
        edges.append((ids + len(texts), places, places + length))
        _, first = np.unique(ids, return_index=True)
        texts += [text[place : place + length] for place in places[first].tolist()]
    return Lattice.of(counts, joined.starts, *(np.concatenate(each) for each in zip(*edges, strict=True))), texts


def _chosen(texts: list[str], keep: np.ndarray) -> list[str]:
    return list(itertools.compress(texts, keep.tolist()))


def _probabilities(scores: np.ndarray) -> np.ndarray:
    return np.exp(np.maximum(scores, LOWEST_SCORE).round(DECIMALS))


def digamma(values: Any) -> Any:
    """The derivative of log gamma, for numbers above 0: the asymptotic series at `values` + 10, and the recurrence down from there."""
    above = values + 10
    square = 1 / (above * above)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return np.log(above) - 0.5 / above - series - sum(1 / (values + place) for place in range(10))


def _losses(texts: list[str], num_letters: int, scores: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """What the text loses in log likelihood if a piece is left out: it is then written with the others, in all their ways."""
    probabilities = _probabilities(scores)
    lattice = _lattice_of_pieces(texts, num_letters)
    is_whole = lattice.pieces == lattice.words + num_letters
    weights = np.where(is_whole, 0, probabilities[lattice.pieces])
    others = lattice.forward(weights)[lattice.starts[1:] - 1]
    losses = expected[num_letters:] * np.log1p(probabilities[num_letters:] / others)
    return np.concatenate([np.full(num_letters, np.inf), losses.round(6)])


def _lattice_of_pieces(texts: list[str], num_letters: int) -> Lattice:
    """The pieces of two characters and more as words, cut into pieces."""
    words = texts[num_letters:]
    joined = Joined.of("".join(f"{word}\n" for word in words), texts[:num_letters])
    starts, lengths = joined.starts[:-1], np.diff(joined.starts) - 1
    places, ids = joined.characters()
    edges = [(ids, places, places + 1)]
    for length in range(2, MAX_PIECE + 1):
        places, ids = joined.longer(places, ids, length)
        id_at = np.full(len(joined.letters), -1)
        id_at[places] = ids
        # A string that is a piece is also a word here. One that begins no word begins no piece.
        is_prefix = np.zeros(len(places), bool)
        is_prefix[id_at[starts[lengths >= length]]] = True
        places, ids = places[is_prefix[ids]], ids[is_prefix[ids]]
        piece_of = np.full(len(is_prefix), -1)
        whole = np.flatnonzero(lengths == length)
        piece_of[id_at[starts[whole]]] = whole + num_letters
        is_piece = piece_of[ids] >= 0
        edges.append((piece_of[ids[is_piece]], places[is_piece], places[is_piece] + length))
    return Lattice.of(np.ones(len(words)), joined.starts, *(np.concatenate(each) for each in zip(*edges, strict=True)))


def _highest(values: np.ndarray, number: int) -> np.ndarray:
    """So many of the highest values: bool. Of equal ones the first."""
    keep = np.zeros(len(values), bool)
    keep[np.argsort(-values, kind="stable")[:number]] = True
    return keep

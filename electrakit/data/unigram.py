"""Words and their counts in, pieces and their scores out: learns a unigram language model (Kudo 2018), the same every time.

The trainer of `tokenizers` adds floating-point numbers in the order of a hash table and of its threads, so no two of its results are
equal. Here the words are sorted, and all sums are made in that order. Forward and backward sums run over all words at once, one
character at a time, in plain probabilities: a word is at most 24 characters, each of at least e^-20, which float64 holds.
"""

import itertools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import digamma

SPACE = "▁"  # stands for the space before a word
MAX_PIECE = 16  # characters, as in SentencePiece
MAX_WORD = 24  # longer ones are cut, for training only
MAX_CHARACTERS = 4_000_000  # of different words, the most frequent first: bounds memory and time
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
    is_character = np.array([len(text) == 1 for text in texts])
    scores = np.log(np.maximum(1, lattice.frequencies(len(texts))) / lattice.counts.sum())
    while True:
        for _ in range(NUM_EM):
            expected = lattice.expected(_probabilities(scores))
            keep = (expected >= FEWEST_EXPECTED) | is_character
            lattice, texts, is_character = _only(lattice, keep), _chosen(texts, keep), is_character[keep]
            expected = expected[keep]
            scores = digamma(np.maximum(expected, FEWEST_EXPECTED)) - digamma(expected.sum())
        if len(texts) <= max(num_pieces, int(1.1 * num_pieces)):
            break
        size = max(int(1.1 * num_pieces), int(KEEP_SHARE * len(texts)))
        keep = _highest(_losses(texts, scores, expected), is_character, texts, size)
        lattice, texts = _only(lattice, keep), _chosen(texts, keep)
        is_character, scores = is_character[keep], scores[keep]
    scores = np.log(_probabilities(scores)).round(6)
    chosen = np.flatnonzero(_highest(scores, is_character, texts, num_pieces))
    return sorted(((texts[place], float(scores[place])) for place in chosen), key=lambda pair: (-pair[1], pair[0]))


def smallest_alphabet(alphabet: set[str]) -> set[str]:
    """With the space and printable ASCII, so that no special token's text is ever better read as that token."""
    return {*alphabet, SPACE, *map(chr, range(0x21, 0x7F))}


# --- words ---


def _runs(words: dict[str, int], alphabet: set[str]) -> dict[str, int]:
    """Parts of the words that a piece may span: of one script, of digits, or of neither; sorted."""
    found: dict[str, int] = {}
    num_characters = 0
    for word, count in sorted(words.items(), key=lambda pair: (-pair[1], pair[0])):
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
    """Of each edge; sorted by where it ends in its word."""
    by_end: np.ndarray
    """Where the edges begin that end after so many characters of their word."""
    by_begin: tuple[np.ndarray, np.ndarray]
    """Edges in the order of where they begin in their word, and where each such place begins in this order."""

    @classmethod
    def of(
        cls, counts: np.ndarray, starts: np.ndarray, pieces: np.ndarray, begins: np.ndarray, ends: np.ndarray
    ) -> "Lattice":
        word = np.searchsorted(starts, begins, side="right") - 1
        offsets = ends - starts[word]
        order = np.lexsort((pieces, begins, offsets))
        pieces, begins, ends, offsets, word = (each[order] for each in (pieces, begins, ends, offsets, word))
        from_begin = np.argsort(begins - starts[word], kind="stable")
        bounds = np.searchsorted((begins - starts[word])[from_begin], np.arange(MAX_WORD + 2))
        by_end = np.searchsorted(offsets, np.arange(MAX_WORD + 2))
        return cls(counts, starts, pieces, begins, ends, by_end, (from_begin, bounds))

    def frequencies(self, num_pieces: int) -> np.ndarray:
        """How often each piece occurs, and that times its length: the score of a seed."""
        word = np.searchsorted(self.starts, self.begins, side="right") - 1
        return np.bincount(self.pieces, self.counts[word] * (self.ends - self.begins), num_pieces)

    def forward(self, weights: np.ndarray) -> np.ndarray:
        """The probability of all ways to reach each place, given that of each edge."""
        total = np.zeros(self.starts[-1])
        total[self.starts[:-1]] = 1
        for offset in range(1, MAX_WORD + 1):
            edges = slice(self.by_end[offset], self.by_end[offset + 1])
            ends = self.ends[edges]
            if len(ends):
                places, inverse = np.unique(ends, return_inverse=True)
                total[places] = np.bincount(inverse, total[self.begins[edges]] * weights[edges])
        return total

    def backward(self, weights: np.ndarray) -> np.ndarray:
        """The probability of all ways to go on from each place."""
        total = np.zeros(self.starts[-1])
        total[self.starts[1:] - 1] = 1
        order, bounds = self.by_begin
        for offset in range(MAX_WORD - 1, -1, -1):
            edges = order[bounds[offset] : bounds[offset + 1]]
            if len(edges):
                places, inverse = np.unique(self.begins[edges], return_inverse=True)
                total[places] = np.bincount(inverse, total[self.ends[edges]] * weights[edges])
        return total

    def expected(self, probabilities: np.ndarray) -> np.ndarray:
        """How often each piece is expected in the text."""
        weights = probabilities[self.pieces]
        forward, backward = self.forward(weights), self.backward(weights)
        word = np.searchsorted(self.starts, self.begins, side="right") - 1
        share = forward[self.begins] * weights * backward[self.ends] / backward[self.starts[:-1]][word]
        return np.bincount(self.pieces, share * self.counts[word], len(probabilities))


def _seed(runs: dict[str, int], alphabet: set[str], num_pieces: int, min_frequency: int) -> tuple[Lattice, list[str]]:
    """The lattice of the strings that occur most, by count times length, and these strings; all of the alphabet is among them."""
    text = "".join(f"{run}\n" for run in runs)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)
    ends = np.flatnonzero(codes == ord("\n"))
    starts = np.concatenate([[0], ends + 1])
    counts = np.fromiter(runs.values(), np.int64, len(runs))
    weight = np.repeat(counts, np.diff(starts))
    letters = sorted(alphabet)
    numbers = np.full(0x110000, -1)
    numbers[[ord(letter) for letter in letters]] = np.arange(len(letters))

    places = np.flatnonzero(codes != ord("\n"))
    ids = numbers[codes[places]]
    texts = [*letters]
    values = [np.full(len(letters), np.inf)]  # characters stay
    edges = [(ids, places, places + 1)]
    for length in range(2, MAX_PIECE + 1):
        # A string of this length is one that is shorter by a character, and that character.
        is_inside = codes[places + length - 1] != ord("\n")
        places, ids = places[is_inside], ids[is_inside]
        keys = ids * len(letters) + numbers[codes[places + length - 1]]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        frequency = np.bincount(inverse, weight[places], len(first))
        is_frequent = frequency >= min_frequency
        renumbered = np.cumsum(is_frequent) - 1
        chosen = is_frequent[inverse]
        ids, places, first = renumbered[inverse[chosen]], places[chosen], places[first[is_frequent]]
        if not len(places):
            break
        edges.append((ids + len(texts), places, places + length))
        texts += [text[place : place + length] for place in first.tolist()]
        values.append(frequency[is_frequent] * length)
    num_seeds = min(MAX_SEEDS, max(SEEDS_PER_PIECE * num_pieces, 10_000))
    is_character = np.arange(len(texts)) < len(letters)
    keep = _highest(np.concatenate(values), is_character, texts, max(num_seeds, len(letters)))
    lattice = Lattice.of(counts, starts, *(np.concatenate(each) for each in zip(*edges, strict=True)))
    return _only(lattice, keep), _chosen(texts, keep)


def _only(lattice: Lattice, keep: np.ndarray) -> Lattice:
    """The lattice without the edges of other pieces, which get new numbers."""
    if keep.all():
        return lattice
    numbers = np.cumsum(keep) - 1
    is_left = keep[lattice.pieces]
    edges = (numbers[lattice.pieces[is_left]], lattice.begins[is_left], lattice.ends[is_left])
    return Lattice.of(lattice.counts, lattice.starts, *edges)


def _chosen(texts: list[str], keep: np.ndarray) -> list[str]:
    return list(itertools.compress(texts, keep.tolist()))


def _probabilities(scores: np.ndarray) -> np.ndarray:
    return np.exp(np.maximum(scores, LOWEST_SCORE).round(DECIMALS))


def _losses(texts: list[str], scores: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """What the text loses in log likelihood if a piece is left out: it is then written with the others, in all their ways."""
    probabilities = _probabilities(scores)
    longest = [place for place, text in enumerate(texts) if len(text) > 1]
    lattice = _lattice_of_pieces(texts, longest)
    is_whole = (
        lattice.ends - lattice.begins
        == (np.diff(lattice.starts) - 1)[np.searchsorted(lattice.starts, lattice.begins, side="right") - 1]
    )
    weights = np.where(is_whole, 0, probabilities[lattice.pieces])
    others = lattice.forward(weights)[lattice.starts[1:] - 1]
    losses = np.full(len(texts), np.inf)
    losses[longest] = expected[longest] * np.log1p(probabilities[longest] / others)
    return losses.round(6)


def _lattice_of_pieces(texts: list[str], longest: list[int]) -> Lattice:
    """The pieces of two characters and more as words, cut into pieces."""
    numbers = {text: place for place, text in enumerate(texts)}
    lengths = np.array([len(texts[place]) for place in longest], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    found = [
        (number, start + begin, start + end)
        for start, place in zip(starts.tolist(), longest, strict=False)
        for begin in range(len(texts[place]))
        for end in range(begin + 1, len(texts[place]) + 1)
        if (number := numbers.get(texts[place][begin:end])) is not None
    ]
    pieces, begins, ends = np.array(found, np.int64).reshape(-1, 3).T
    return Lattice.of(np.ones(len(longest)), starts, pieces, begins, ends)


def _highest(values: np.ndarray, is_character: np.ndarray, texts: list[str], number: int) -> np.ndarray:
    """So many of the pieces, all characters among them, then those of the highest value: bool. Ties go to the first text."""
    order = np.lexsort((np.array(texts), -values, ~is_character))
    keep = np.zeros(len(values), bool)
    keep[order[: max(number, int(is_character.sum()))]] = True
    return keep

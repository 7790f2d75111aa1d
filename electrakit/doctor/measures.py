"""What the doctor measures in documents and in rows of tokens."""

import functools
import itertools
import re
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash

from electrakit.common.word_marks import CONTINUES, UNSPACED, is_continuation, token_text, word_mark
from electrakit.data.batches import Batches
from electrakit.data.encode import Encoder
from electrakit.data.read.formats import Document
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer
from electrakit.doctor.findings import Measure, Measures

# In scripts without spaces between words a character counts as a word; what stands between two spaces is a phrase.
SHORT_DOCUMENT_WORDS = 10
LONG_WORD = 40  # characters; German and Finnish have a few
# Languages have several words of one letter (Russian seven), but never this many in a row.
LETTERS_IN_A_ROW = 5
# Punctuation that programs and markup use much more than prose.
CODE = b"{}()[]<>=;_+*/\\|&#$@^~`%"
# Of a document batch, for the words that are seen once.
SAMPLE_CHARACTERS = 30_000
# In fewer words, half of those of good prose are seen once.
FEWEST_WORDS = 2_000
# Of rows, 8 bytes each.
MAX_HASHES = 2**23

_LETTERS = re.compile(r"[^\W\d_]{2,}")


# --- documents ---


class TextCounts(NamedTuple):
    """What is counted in a document, or in a corpus."""

    words: int
    short_documents: int
    single_letters: int
    letters_in_a_row: int
    in_long_words: int
    """Characters."""
    letters: int
    code_punctuation: int
    visible_characters: int
    characters: int


@dataclass
class Tally:
    """What the workers count in a document batch."""

    counts: np.ndarray
    """(documents, fields of TextCounts)"""
    ids: np.ndarray
    """The tokens of all documents; empty without a tokenizer."""
    ids_per_document: np.ndarray
    words: np.ndarray
    """Hashes of a sample of the words."""
    characters: Counter[str]
    """Of that sample, without spaces."""


def tally(tokenizer: str | None, documents: list[Document], identities: np.ndarray) -> Tally:
    """Count in a document batch; runs in the workers."""
    counts = np.array([count(document) for document in documents], np.int64).reshape(-1, len(TextCounts._fields))
    sample = _sample(documents)
    words, characters = _hashes_of_words(sample), Counter("".join(sample.split()))
    if tokenizer is None:
        return Tally(counts, np.zeros(0, np.uint32), np.zeros(len(documents), np.int64), words, characters)
    ids, per_line = _encoder(tokenizer).encode([line for document in documents for line in document.lines])
    ends = np.concatenate([[0], np.cumsum(per_line)])[np.cumsum([0, *(len(one.lines) for one in documents)])]
    return Tally(counts, ids, np.diff(ends), words, characters)


def count(document: Document) -> TextCounts:
    words = [word for line in document.lines for word in line.split()]
    text = "".join(words)
    num_words = len(words)
    if not text.isascii() and (num_unspaced := len(UNSPACED.findall(text))):
        num_words = num_unspaced + sum(not UNSPACED.search(word) for word in words)
    return TextCounts(
        words=num_words,
        short_documents=int(num_words < SHORT_DOCUMENT_WORDS),
        single_letters=sum(map(is_letter, words)),
        letters_in_a_row=num_in_a_row(words),
        in_long_words=sum(len(word) for word in words if len(word) >= LONG_WORD and _is_long_word(word)),
        letters=num_letters(text),
        code_punctuation=num_code_characters(text),
        visible_characters=len(text),
        characters=sum(len(line) + 1 for line in document.lines),
    )


def is_letter(word: str) -> bool:
    """A single letter of an alphabet. In scripts without spaces, one character may be a word."""
    return len(word) == 1 and word.isalpha() and not UNSPACED.match(word)


def num_in_a_row(words: list[str]) -> int:
    """Single letters in a row, which only text has that was split into letters."""
    runs = (len(list(run)) for are_letters, run in itertools.groupby(words, is_letter) if are_letters)
    return sum(length for length in runs if length >= LETTERS_IN_A_ROW)


def _is_long_word(word: str) -> bool:
    """Neither a phrase of a script without spaces nor a line of dashes."""
    return not UNSPACED.search(word) and num_letters(word) > len(word) / 2


def num_code_characters(text: str) -> int:
    raw = text.encode("utf-8", "replace")
    return len(raw) - len(raw.translate(None, CODE))


def num_letters(text: str) -> int:
    """Letters and their marks, which are vowels in Hindi and Thai."""
    return int(_are_letters()[np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)].sum())


@functools.cache
def _are_letters() -> np.ndarray:
    return np.array([unicodedata.category(chr(point))[0] in "LM" for point in range(0x110000)])


def _sample(documents: list[Document]) -> str:
    text = ""
    for line in (line for document in documents for line in document.lines):
        text += f"{line[:SAMPLE_CHARACTERS]}\n".lower()
        if len(text) > SAMPLE_CHARACTERS:
            break
    return text


def _hashes_of_words(text: str) -> np.ndarray:
    words = [word for word in _LETTERS.findall(text) if not UNSPACED.search(word)]
    return np.array([zlib.crc32(word.encode("utf-8", "replace")) for word in words], np.uint32)


def share_seen_once(words: list[np.ndarray]) -> float | None:
    """The share of words that occur once; None if there are too few. Prose repeats its words, random letters do not."""
    _, counts = np.unique(np.concatenate([np.zeros(0, np.uint32), *words]), return_counts=True)
    return float((counts == 1).sum() / counts.sum()) if counts.sum() >= FEWEST_WORDS else None


@functools.lru_cache(maxsize=1)
def _encoder(name: str) -> Encoder:
    return Encoder(load_tokenizer(name).json)


# --- tokens ---


def token_measures(counts: np.ndarray, tokenizer: TokenizerFiles, share_seen: float) -> Measures:
    """Measures of how often each token occurs."""
    counts = without_special(counts, tokenizer)
    num_tokens = int(counts.sum())
    shares = counts[counts > 0] / max(1, num_tokens)
    measures = {
        Measure.TOKENS: num_tokens,
        Measure.UNKNOWN_TOKENS: int(counts[tokenizer.special_ids["unk"]]) / max(1, num_tokens),
        Measure.TOKENS_PER_ENTRY: num_tokens / share_seen / len(counts),
        Measure.UNIGRAM_ENTROPY: float(-(shares * np.log(shares)).sum()),
    }
    if num_tokens > 100 * len(counts):  # else too little was seen to call an entry unused
        measures[Measure.UNUSED_VOCABULARY] = float((counts == 0).mean())
    return measures


def share_of_continued(ids: np.ndarray, tokenizer: TokenizerFiles) -> float:
    """The share of the words that are of several tokens."""
    vocabulary = tokenizer.vocabulary
    mark = word_mark(vocabulary)
    continues = np.array([is_continuation(token, mark) for token in vocabulary])
    is_start = ~continues
    is_start[[number for name, number in tokenizer.special_ids.items() if name != "unk"]] = False
    return float((is_start[ids[:-1]] & continues[ids[1:]]).sum() / max(1, is_start[ids].sum()))


def characters_of_rows(rows: np.ndarray, tokenizer: TokenizerFiles) -> Counter[str]:
    """How often each character occurs in the tokens of the rows; parts of characters are left out."""
    counts = without_special(np.bincount(rows.ravel(), minlength=len(tokenizer.vocabulary)), tokenizer)
    counts[tokenizer.special_ids["unk"]] = 0
    vocabulary = tokenizer.vocabulary
    mark = word_mark(vocabulary)
    found: Counter[str] = Counter()
    for number in np.flatnonzero(counts).tolist():
        for character in token_text(vocabulary[number], mark):
            found[character] += int(counts[number])
    del found["\ufffd"], found[" "]
    return found


def without_special(counts: np.ndarray, tokenizer: TokenizerFiles) -> np.ndarray:
    """How often each token occurs, special ones not counted. An [UNK] is counted: it stands for a word."""
    counts = counts.copy()
    counts[[number for name, number in tokenizer.special_ids.items() if name != "unk"]] = 0
    return counts


# --- rows ---


def sample_rows(batches: Batches, num_rows: int) -> np.ndarray:
    """Rows of a split: a fair sample, because they are shuffled."""
    num_rows = min(num_rows, batches.num_rows)
    num_steps = -(-num_rows // batches.batch_size)
    return np.concatenate([batches(step) for step in range(num_steps)])[:num_rows]


def row_measures(rows: np.ndarray, tokenizer: TokenizerFiles) -> Measures:
    """Measures of the text in rows of tokens; words are put together again from their tokens."""
    special = set(tokenizer.special_ids.values())
    vocabulary = tokenizer.vocabulary
    mark = word_mark(vocabulary)
    texts = ["" if number in special else token_text(token, mark) for number, token in enumerate(vocabulary)]
    continues = np.array(
        [
            is_continuation(token, mark) and token != CONTINUES and not UNSPACED.search(text)
            for token, text in zip(vocabulary, texts, strict=True)
        ]
    )
    is_word = np.array([any(map(str.isalnum, text)) for text in texts]) & ~continues
    is_word[tokenizer.special_ids["unk"]] = True
    is_single = np.array([is_letter(text) for text in texts]) & ~continues
    sizes = np.array([len(text) for text in texts])
    letters = np.array([num_letters(text) for text in texts])
    code = np.array([num_code_characters(text) for text in texts])

    flat = rows.ravel()
    counts = np.bincount(flat, minlength=len(texts))
    num_tokens = without_special(counts, tokenizer).sum()
    num_words, num_characters = max(1, int(counts @ is_word)), max(1, int(counts @ sizes))
    in_words = np.array([0 if UNSPACED.search(text) else len(text) for text in texts])
    word_sizes = np.bincount(np.cumsum(~continues[flat]), weights=in_words[flat])  # no word crosses [CLS]
    is_alone = is_single[flat] & ~continues[np.roll(flat, -1)]
    borders = np.flatnonzero(np.diff(is_alone, prepend=False, append=False))
    runs = borders[1::2] - borders[::2]
    return {
        Measure.TOKENS_PER_WORD: float(num_tokens / num_words),
        Measure.SINGLE_LETTERS: float(is_alone.sum() / num_words),
        Measure.LETTERS_IN_A_ROW: float(runs[runs >= LETTERS_IN_A_ROW].sum() / num_words),
        Measure.OVERLONG_WORDS: float(word_sizes[word_sizes >= LONG_WORD].sum() / num_characters),
        Measure.SYMBOLS: 1 - int(counts @ letters) / num_characters,
        Measure.CODE: int(counts @ code) / num_characters,
    }


def share_of_copies(batches: Batches) -> float:
    """The share of a split's rows that are copies of others. The same document always gives the same rows.

    Where there are too many rows to remember, they are chosen by their hash, so that copies are chosen together.
    """
    highest = np.uint64((2**64 - 1) * min(1, MAX_HASHES / batches.num_rows))
    chosen = []
    for rows in batches.chunks(2**14):
        hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, rows), np.uint64, len(rows))
        chosen.append(hashes[hashes <= highest])
    hashes = np.concatenate(chosen)
    return 1 - len(np.unique(hashes)) / max(1, len(hashes))

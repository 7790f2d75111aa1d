"""Documents or rows in, numbers out: what the doctor measures."""

import functools
import itertools
import re
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electrakit.data.batches import DTYPES
from electrakit.data.encode import Encoder
from electrakit.data.sources import Document
from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer

SHORT_DOCUMENT = 10  # words
LONG_WORD = 40  # characters; German and Finnish have a few
LETTERS_IN_A_ROW = (
    5  # words of one letter: languages have several of them (Russian seven), but not one behind the other
)
CODE = b"{}()[]<>=;_+*/\\|&#$@^~`%"  # punctuation that programs and markup need much more than prose
SAMPLE_CHARACTERS = 30_000  # of a piece, for the words that are seen once
FEWEST_WORDS = 2_000  # in fewer, half of the words of good prose are seen once
MAX_HASHES = 2**23  # of rows, 8 bytes each

# Scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese, Yi. A character
# counts as a word there; what stands between two spaces is a phrase.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3040-\u312f\u3400-\u9fff\ua000-\ua4cf\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
_LETTERS = re.compile(r"[^\W\d_]{2,}")


# --- documents -------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What the workers count in the documents of a piece."""

    numbers: dict[str, np.ndarray]  # name -> one number for each document
    ids: np.ndarray  # the tokens of all documents, none if there is no tokenizer
    ids_per_document: np.ndarray
    words: np.ndarray  # hashes of a sample of the words


def tally(tokenizer: str | None, documents: list[Document], identities: np.ndarray) -> Tally:
    """Documents in, counts out: what the workers do."""
    counted = [count(document) for document in documents]
    numbers = {name: np.array([one[name] for one in counted], np.int64) for name in count(Document([]))}
    words = _sample_of_words(documents)
    if tokenizer is None:
        return Tally(numbers, np.zeros(0, np.uint32), np.zeros(len(documents), np.int64), words)
    ids, per_line = _encoder(tokenizer).encode([line for document in documents for line in document.lines])
    ends = np.concatenate([[0], np.cumsum(per_line)])[np.cumsum([0, *(len(one.lines) for one in documents)])]
    return Tally(numbers, ids, np.diff(ends), words)


def count(document: Document) -> dict[str, int]:
    words = [word for line in document.lines for word in line.split()]
    text = "".join(words)
    num_words = len(words)
    if not text.isascii() and (num_unspaced := len(_UNSPACED.findall(text))):
        num_words = num_unspaced + sum(not _UNSPACED.search(word) for word in words)
    return {
        "words": num_words,
        "short documents": num_words < SHORT_DOCUMENT,
        "single letters": sum(map(is_letter, words)),
        "letters in a row": num_in_a_row(words),
        "in long words": sum(len(word) for word in words if len(word) >= LONG_WORD and _is_long_word(word)),
        "letters": num_letters(text),
        "code punctuation": num_of_code(text),
        "visible characters": len(text),
        "characters": sum(len(line) + 1 for line in document.lines),
    }


def is_letter(word: str) -> bool:
    """One letter of an alphabet: in scripts without spaces one character can well be a word."""
    return len(word) == 1 and word.isalpha() and not _UNSPACED.match(word)


def num_in_a_row(words: list[str]) -> int:
    """Single letters that stand one behind the other, as nowhere but in text that was taken apart."""
    return sum(len(run) for run in map(list, _runs(words)) if len(run) >= LETTERS_IN_A_ROW)


def _runs(words: list[str]) -> Iterator[Iterator[str]]:
    return (run for are_letters, run in itertools.groupby(words, is_letter) if are_letters)


def _is_long_word(word: str) -> bool:
    """Not a phrase of a script without spaces, and not a line of dashes."""
    return not _UNSPACED.search(word) and num_letters(word) > len(word) / 2


def num_of_code(text: str) -> int:
    raw = text.encode("utf-8", "replace")
    return len(raw) - len(raw.translate(None, CODE))


def num_letters(text: str) -> int:
    """Letters, and the marks that go with them: vowels, in Hindi and Thai."""
    return int(_are_letters()[np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)].sum())


@functools.cache
def _are_letters() -> np.ndarray:
    return np.array([unicodedata.category(chr(point))[0] in "LM" for point in range(0x110000)])


def _sample_of_words(documents: list[Document]) -> np.ndarray:
    lines = (line for document in documents for line in document.lines)
    text = ""
    for line in lines:
        text += f"{line[:SAMPLE_CHARACTERS]}\n".lower()
        if len(text) > SAMPLE_CHARACTERS:
            break
    words = [word for word in _LETTERS.findall(text) if not _UNSPACED.search(word)]
    return np.array([zlib.crc32(word.encode("utf-8", "replace")) for word in words], np.uint32)


def share_seen_once(words: list[np.ndarray]) -> float | None:
    """Of the words, how many occur once; None if there are too few to say. Prose repeats itself, random letters do not."""
    _, counts = np.unique(np.concatenate([np.zeros(0, np.uint32), *words]), return_counts=True)
    return float((counts == 1).sum() / counts.sum()) if counts.sum() >= FEWEST_WORDS else None


@functools.lru_cache(maxsize=1)
def _encoder(name: str) -> Encoder:
    return Encoder(load_tokenizer(name).json)


# --- tokens ----------------------------------------------------------------------------------------------------------


def token_measures(counts: np.ndarray, tokenizer: TokenizerFiles, share_seen: float) -> dict[str, float]:
    """Measures of how often each token occurs."""
    special = list(tokenizer.special_ids.values())
    num_unknown = int(counts[tokenizer.special_ids["unk"]])
    counts = counts.copy()
    counts[[one for one in special if one != tokenizer.special_ids["unk"]]] = 0
    num_tokens = int(counts.sum())
    shares = counts[counts > 0] / max(1, num_tokens)
    measures = {
        "tokens": num_tokens,
        "[UNK] tokens": num_unknown / max(1, num_tokens),
        "tokens per vocabulary entry": num_tokens / share_seen / len(counts),
        "unigram entropy (nats)": float(-(shares * np.log(shares)).sum()),
    }
    if num_tokens > 100 * len(counts):  # else too little was seen to call an entry unused
        measures["unused vocabulary"] = float((counts == 0).mean())
    return measures


# --- rows ------------------------------------------------------------------------------------------------------------


def row_measures(rows: np.ndarray, tokenizer: TokenizerFiles) -> dict[str, float]:
    """What can be said about the text from rows of its tokens: words are put together again from their pieces."""
    unk = tokenizer.special_ids["unk"]
    special = set(tokenizer.special_ids.values())
    texts = ["" if number in special else token for number, token in enumerate(tokenizer.vocabulary)]
    goes_on = np.array([text.startswith("##") and len(text) > 2 and not _UNSPACED.search(text) for text in texts])
    texts = [text.removeprefix("##") if len(text) > 2 else text for text in texts]
    is_word = np.array([any(map(str.isalnum, text)) for text in texts]) & ~goes_on
    is_word[unk] = True
    is_single = np.array([is_letter(text) for text in texts]) & ~goes_on
    sizes = np.array([len(text) for text in texts])
    letters = np.array([num_letters(text) for text in texts])
    code = np.array([num_of_code(text) for text in texts])

    flat = rows.ravel()
    counts = np.bincount(flat, minlength=len(texts))
    num_tokens = counts.sum() - counts[[one for one in special if one != unk]].sum()
    num_words, num_characters = max(1, int(counts @ is_word)), max(1, int(counts @ sizes))
    in_words = np.array([0 if _UNSPACED.search(text) else len(text) for text in texts])
    word_sizes = np.bincount(np.cumsum(~goes_on[flat]), weights=in_words[flat])  # no word crosses [CLS]
    is_alone = is_single[flat] & ~goes_on[np.roll(flat, -1)]
    borders = np.flatnonzero(np.diff(is_alone, prepend=False, append=False))
    runs = borders[1::2] - borders[::2]
    return {
        "tokens per word": float(num_tokens / num_words),
        "single-letter words": float(is_alone.sum() / num_words),
        "letters in a row": float(runs[runs >= LETTERS_IN_A_ROW].sum() / num_words),
        "text in overlong words": float(word_sizes[word_sizes >= LONG_WORD].sum() / num_characters),
        "symbols and digits": 1 - int(counts @ letters) / num_characters,
        "code punctuation": int(counts @ code) / num_characters,
    }


def share_of_copies(folder: Path, manifest: dict[str, Any], split: str) -> float:
    """Of all rows of the split, how many are a copy of another one. The same document always gives the same rows.

    Rows are chosen by their hash where they are too many to remember, so that copies are chosen together.
    """
    num_rows = manifest["splits"][split]["rows"]
    highest = np.uint64(2**64 * min(1, MAX_HASHES / num_rows) - 1 if num_rows > MAX_HASHES else 2**64 - 1)
    chosen = [hashes[hashes <= highest] for hashes in map(row_hashes, _all_rows(folder, manifest, split))]
    hashes = np.concatenate(chosen)
    return 1 - len(np.unique(hashes)) / max(1, len(hashes))


def _all_rows(folder: Path, manifest: dict[str, Any], split: str) -> Iterator[np.ndarray]:
    for file in manifest["splits"][split]["files"]:
        shape = (file["rows"], manifest["length"])
        rows = np.memmap(folder / file["name"], DTYPES[manifest["dtype"]], "r", shape=shape).view(np.ndarray)
        yield from (rows[start : start + 2**14] for start in range(0, len(rows), 2**14))


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """64 bits for each row: its bytes by eights, each mixed, times fixed random numbers, added up."""
    raw = np.ascontiguousarray(rows).view(np.uint8)
    raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))) if raw.shape[1] % 8 else raw
    words = raw.view(np.uint64)
    mixed = (words ^ (words >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    weights = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64, endpoint=False)
    hashes: np.ndarray = mixed @ (weights | np.uint64(1))
    return hashes

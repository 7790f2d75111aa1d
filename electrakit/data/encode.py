"""Lines in, token ids out: `tokenizers` decides, `tokie` does the work where both are known to agree."""

import contextlib
import importlib.metadata
import json
import os
import re
import tempfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

# Code points on which tokie 0.1.4 and tokenizers 0.23.3 gave the same ids, cased and uncased, with a vocabulary that
# has every character of the basic plane as a piece: each one alone and in 15 contexts, each pair of them inside a word,
# and 100,000 random lines. Whole old blocks only: the two differ on unassigned code points and on marks and punctuation
# of recent Unicode versions, and these move with each release. Other scripts (CJK, Arabic, Indic) take the slow path.
AGREED_RANGES = (
    (0x0009, 0x000A),  # tab, line feed
    (0x000D, 0x000D),  # carriage return
    (0x0020, 0x007E),  # Basic Latin, printable (U+007F differs)
    (0x00A0, 0x0377),  # Latin-1, Latin Extended-A and -B, IPA, modifiers, combining marks, first Greek letters
    (0x0384, 0x038A),  # Greek, without its unassigned points
    (0x038C, 0x038C),
    (0x038E, 0x03A1),
    (0x03A3, 0x052F),  # Greek, Coptic, Cyrillic and its supplement
    (0x1E00, 0x1EFF),  # Latin Extended Additional (Vietnamese, transliterations)
    (0x2000, 0x2064),  # General Punctuation
    (0x20A0, 0x20BF),  # Currency Symbols
    (0x2100, 0x214F),  # Letterlike Symbols
    (0x2190, 0x22FF),  # Arrows, Mathematical Operators
)
IS_AGREED = np.zeros(0x110000, bool)
for _first, _last in AGREED_RANGES:
    IS_AGREED[_first : _last + 1] = True
# tokie cuts a text of more than 65,536 bytes in pieces for its threads, if need be inside a word.
MAX_FAST_CHARS = 65_536 // 4
AGREED_VERSIONS = {("0.1.4", "0.23.3")}  # of tokie and tokenizers: others were not compared
# Of each call, so that the number of workers does not decide what is audited. tokenizers is about 20 times slower, so
# one line in 1,000 costs 2 %.
AUDIT_FIRST, AUDIT_EVERY = 4, 1000
MAX_KNOWN_BYTES = 100_000_000  # of the words whose ids are remembered, about
BLOCK_CHARS = 1 << 21  # what is looked at and encoded at once: bounds the memory of a long document
SLOW_BATCH_CHARS = 1 << 18  # an Encoding takes over 100 bytes per token: bounds the slow path's memory
_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoder:
    """Lines in, token ids out: `tokenizers` is the truth, `tokie` the fast path where both are known to agree."""

    def __init__(self, tokenizer_json: str, fast: bool = True) -> None:
        self.warnings: list[str] = []  # what the audit found, each once; the caller reports them
        self._truth = Tokenizer.from_str(tokenizer_json)
        self._truth.no_padding()
        self._truth.no_truncation()
        # "[SEP]" in a corpus is five ordinary characters: text must not be able to inject [SEP], [PAD] or [MASK] into
        # rows, where segments, attention and masking are computed from these ids.
        self._truth.encode_special_tokens = True
        settings = json.loads(self._truth.to_str())
        self._special_texts = [token["content"] for token in settings["added_tokens"]]
        self._tokie = load_tokie(self._truth) if fast and can_agree(settings) else None
        self._words = Words(self._encode_truly) if is_by_word(settings) else None

    @property
    def is_fast(self) -> bool:
        """Whether tokie is in use: installed, known to agree on this tokenizer, and not caught differing."""
        return self._tokie is not None

    def encode(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all lines in one flat uint32 array, and the number of ids of each line (int64)."""
        encoded = [self._encode_block(lines[start:end]) for start, end in blocks(lines, BLOCK_CHARS)]
        if len(encoded) == 1:
            return encoded[0]
        return np.concatenate([ids for ids, _ in encoded]), np.concatenate([counts for _, counts in encoded])

    def _encode_block(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if self._tokie is None:
            return self._encode_slow(lines)
        is_fast = fast_lines(lines, self._special_texts)
        fast = lines if is_fast.all() else [line for line, yes in zip(lines, is_fast, strict=True) if yes]
        fast_ids, fast_counts = self._encode_fast(fast)
        difference = self._audit(fast, fast_ids, fast_counts)
        if difference is not None:
            self._tokie = None
            self.warnings.append(
                f"tokie and tokenizers differ on {difference[:80]!r}: this text and all that follows is encoded by "
                "tokenizers alone, which is slower; please report it"
            )
            return self._encode_slow(lines)
        if len(fast) == len(lines):
            return fast_ids, fast_counts
        slow_ids, slow_counts = self._encode_slow([line for line, yes in zip(lines, is_fast, strict=True) if not yes])
        counts = np.empty(len(lines), np.int64)
        counts[is_fast], counts[~is_fast] = fast_counts, slow_counts
        is_fast_id = np.repeat(is_fast, counts)
        ids = np.empty(len(is_fast_id), np.uint32)
        ids[is_fast_id], ids[~is_fast_id] = fast_ids, slow_ids
        return ids, counts

    def _encode_fast(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        assert self._tokie is not None
        ids, counts = self._tokie.encode_batch_flat(lines, add_special_tokens=False)
        return ids, counts.astype(np.int64)

    def _encode_slow(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        lines = whole_characters(lines)
        return self._words.encode(lines) if self._words is not None else self._encode_truly(lines)

    def _encode_truly(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, counts = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        for start, end in blocks(lines, SLOW_BATCH_CHARS):
            encodings = self._truth.encode_batch_fast(lines[start:end], add_special_tokens=False)
            ids.append(np.array(list(chain.from_iterable(e.ids for e in encodings)), np.uint32))
            counts.append(np.fromiter(map(len, encodings), np.int64, len(encodings)))
        return np.concatenate(ids), np.concatenate(counts)

    def _audit(self, lines: list[str], ids: np.ndarray, counts: np.ndarray) -> str | None:
        """Encode a fixed share of the fast lines by tokenizers too: the first line that differs, or None."""
        numbers = np.arange(len(lines))
        audited = np.flatnonzero((numbers < AUDIT_FIRST) | (numbers % AUDIT_EVERY == 0))
        true_ids, true_counts = self._encode_truly([lines[i] for i in audited])
        ends, true_ends = counts.cumsum(), true_counts.cumsum()
        for i, true_end, true_count in zip(audited, true_ends, true_counts, strict=True):
            if not np.array_equal(ids[ends[i] - counts[i] : ends[i]], true_ids[true_end - true_count : true_end]):
                return lines[i]
        return None


class Words:
    """Lines in, token ids out, by `tokenizers`, which is asked only once for each word: text repeats its words.

    BERT's rules never look over a space, so a line's ids are those of its words. Several times as fast as line by line.
    """

    def __init__(self, encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]) -> None:
        self.encode_anew = encode
        self.forget()

    def forget(self) -> None:
        self.numbers: dict[str, int] = {}  # word -> its place in `ends`
        self.ids = np.empty(0, np.uint32)  # of all words, one after the other
        self.ends = np.empty(0, np.int64)
        self.num_bytes = 0

    def encode(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        words_of_lines = [line.split(" ") for line in lines]
        words = list(chain.from_iterable(words_of_lines))
        if self.num_bytes > MAX_KNOWN_BYTES:
            self.forget()
        self._learn([word for word in dict.fromkeys(words) if word not in self.numbers])
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, len(words))
        ends = self.ends[numbers]
        sizes = ends - np.where(numbers > 0, self.ends[numbers - 1], 0)
        totals = np.concatenate([[0], sizes.cumsum()])
        places = np.repeat(ends - totals[1:], sizes) + np.arange(totals[-1])
        last_words = np.fromiter(map(len, words_of_lines), np.int64, len(lines)).cumsum()
        return self.ids[places], np.diff(totals[last_words], prepend=0)

    def _learn(self, words: list[str]) -> None:
        ids, counts = self.encode_anew(words)
        self.numbers.update(zip(words, range(len(self.ends), len(self.ends) + len(words)), strict=True))
        self.ends = np.concatenate([self.ends, len(self.ids) + counts.cumsum()])
        self.ids = np.concatenate([self.ids, ids])
        self.num_bytes += 160 * len(words) + sum(map(len, words)) + 4 * len(ids)  # an entry of a dict, measured


def is_by_word(settings: dict[str, Any]) -> bool:
    """Whether a tokenizer.json follows BERT's rules, whatever their options: it splits at spaces, first of all."""
    return (
        settings["model"]["type"] == "WordPiece"
        and (settings["normalizer"] or {}).get("type") == "BertNormalizer"
        and settings["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and all(token["special"] and not token["normalized"] for token in settings["added_tokens"])
    )


def can_agree(settings: dict[str, Any]) -> bool:
    """Whether tokie follows these settings of a tokenizer.json: the two of BERT (uncased, cased) and no other.

    tokie takes every BertNormalizer for one of these two: it ignores `clean_text=False`, `handle_chinese_chars=False`
    and a `strip_accents` that is not that of the casing. It numbers a vocabulary with gaps anew. A special token that
    is looked for in normalized text could not be found by looking at the line, as `fast_lines` does.
    """
    model, normalizer = settings["model"], settings["normalizer"] or {}
    return (
        model["type"] == "WordPiece"
        and (model["unk_token"], model["continuing_subword_prefix"]) == ("[UNK]", "##")
        and model["max_input_chars_per_word"] == 100
        and "[UNK]" in model["vocab"]
        and sorted(model["vocab"].values()) == list(range(len(model["vocab"])))
        and normalizer.get("type") == "BertNormalizer"
        and normalizer["clean_text"]
        and normalizer["handle_chinese_chars"]
        and normalizer["strip_accents"] in (None, normalizer["lowercase"])
        and settings["pre_tokenizer"] == {"type": "BertPreTokenizer"}
        and all(token["special"] and not token["normalized"] for token in settings["added_tokens"])
        and all(model["vocab"].get(token["content"]) == token["id"] for token in settings["added_tokens"])
    )


def load_tokie(truth: Tokenizer) -> Any | None:
    """The same tokenizer in tokie, set to one thread; None where tokie is not installed, or of another version."""
    try:
        import tokie

        versions = importlib.metadata.version("tokie"), importlib.metadata.version("tokenizers")
    except ImportError:  # PackageNotFoundError is one too
        return None
    if versions not in AGREED_VERSIONS:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(truth.to_str(), encoding="utf-8")
        tokenizer: Any = tokie.Tokenizer.from_json(str(path))
    # tokie starts a thread per processor in every call and has no setting for it, but it counts the processors that
    # this thread may use only once, at its first call. Our processes run side by side, so let it count one.
    if hasattr(os, "sched_setaffinity"):
        processors = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):  # where this is forbidden, tokie keeps its threads
            os.sched_setaffinity(0, {min(processors)})
            try:
                tokenizer.encode_batch_flat(["one", "two"], add_special_tokens=False)
            finally:
                os.sched_setaffinity(0, processors)
    return tokenizer


def fast_lines(lines: list[str], special_texts: list[str]) -> np.ndarray:
    """Which lines tokie may encode: agreed code points only, no special token's text, not too long."""
    text = "".join(lines)
    lengths = num_chars(lines)
    is_fast = lengths <= MAX_FAST_CHARS
    if not (text.isascii() and text.isprintable()):
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        unusual = np.flatnonzero((codes < 0x20) | (codes > 0x7E))  # few: looking up only these is several times faster
        foreign = unusual[~IS_AGREED[codes[unusual]]]
        is_fast[np.searchsorted(lengths.cumsum(), foreign, side="right")] = False
    present = [special for special in special_texts if special in text]
    if present:
        is_fast &= np.array([not any(special in line for special in present) for line in lines])
    return is_fast


def whole_characters(lines: list[str]) -> list[str]:
    """Lone surrogates, which no UTF-8 text can hold, become U+FFFD; split pairs become their character."""
    if not _SURROGATE.search("".join(lines)):
        return lines
    return [line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for line in lines]


def blocks(lines: list[str], max_chars: int) -> list[tuple[int, int]]:
    """Where blocks of lines start and end that have about so many characters together."""
    ends = [*np.flatnonzero(np.diff(num_chars(lines).cumsum() // max_chars)) + 1, len(lines)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def num_chars(lines: list[str]) -> np.ndarray:
    return np.fromiter(map(len, lines), np.int64, len(lines))

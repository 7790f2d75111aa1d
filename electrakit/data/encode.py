"""Encodes lines as token ids: `tokenizers` is the reference, `tokie` is the fast path where both are known to agree."""

import json
import re
from collections.abc import Callable
from itertools import chain, compress
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from electrakit.data.encode_fast import can_agree, fast_lines, load_tokie, num_chars
from electrakit.data.tokenizer_kinds import subword_rules

# Of each call, so that the number of workers does not decide what is audited. tokenizers is about 20 times slower, so
# one line in 1,000 costs 2 %.
AUDIT_FIRST, AUDIT_EVERY = 4, 1000
MAX_CACHE_BYTES = 100_000_000  # of the words whose ids are cached, about
BLOCK_CHARS = 1 << 21  # encoded at once: bounds the memory of a long document
SLOW_BATCH_CHARS = 1 << 18  # an Encoding takes over 100 bytes per token: bounds the slow path's memory
_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoder:
    """Encodes lines; every id is the one that `tokenizers` gives."""

    def __init__(self, tokenizer_json: str, fast: bool = True) -> None:
        self.warning = ""  # what the audit found; the caller reports it
        self._reference = Tokenizer.from_str(tokenizer_json)
        self._reference.no_padding()
        self._reference.no_truncation()
        # "[SEP]" in a corpus is five ordinary characters: text must not be able to inject [SEP], [PAD] or [MASK] into
        # rows, where segments, attention and masking are computed from these ids.
        self._reference.encode_special_tokens = True
        settings = json.loads(self._reference.to_str())
        self._special_texts = [token["content"] for token in settings["added_tokens"]]
        # A unigram model may find the text of a special token among its pieces: such a piece is unknown.
        self._unknown: np.ndarray | None = None
        if settings["model"]["type"] == "Unigram" and settings["model"]["unk_id"] is not None:
            self._unknown = np.arange(1 + max(self._reference.get_vocab().values()), dtype=np.uint32)
            special = [token["id"] for token in settings["added_tokens"] if token["special"]]
            self._unknown[special] = settings["model"]["unk_id"]
        self._tokie = load_tokie(self._reference) if fast and can_agree(settings) else None
        self._words = WordCache(self._encode_by_reference) if splits_at_spaces(settings) else None

    @property
    def is_fast(self) -> bool:
        """Whether tokie is in use: installed, known to agree on this tokenizer, and not caught differing."""
        return self._tokie is not None

    def encode(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all lines in one flat uint32 array, and the number of ids of each line (int64)."""
        encoded = [self._encode_block(lines[start:end]) for start, end in block_bounds(lines, BLOCK_CHARS)]
        if len(encoded) == 1:
            return encoded[0]
        return np.concatenate([ids for ids, _ in encoded]), np.concatenate([counts for _, counts in encoded])

    def _encode_block(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if self._tokie is None:
            return self._encode_slow(lines)
        is_fast = fast_lines(lines, self._special_texts)
        fast = list(compress(lines, is_fast))
        fast_ids, fast_counts = self._tokie.encode_batch_flat(fast, add_special_tokens=False)
        fast_counts = fast_counts.astype(np.int64)
        difference = self._audit(fast, fast_ids, fast_counts)
        if difference is not None:
            self._tokie = None
            self.warning = f"tokie and tokenizers differ on {difference[:80]!r}; please report it"
            return self._encode_slow(lines)
        if len(fast) == len(lines):
            return fast_ids, fast_counts
        slow_ids, slow_counts = self._encode_slow(list(compress(lines, ~is_fast)))
        counts = np.empty(len(lines), np.int64)
        counts[is_fast], counts[~is_fast] = fast_counts, slow_counts
        is_fast_id = np.repeat(is_fast, counts)
        ids = np.empty(len(is_fast_id), np.uint32)
        ids[is_fast_id], ids[~is_fast_id] = fast_ids, slow_ids
        return ids, counts

    def _encode_slow(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        lines = without_surrogates(lines)
        return self._words.encode(lines) if self._words is not None else self._encode_by_reference(lines)

    def _encode_by_reference(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, counts = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        for start, end in block_bounds(lines, SLOW_BATCH_CHARS):
            encodings = self._reference.encode_batch_fast(lines[start:end], add_special_tokens=False)
            ids.append(np.array(list(chain.from_iterable(e.ids for e in encodings)), np.uint32))
            counts.append(np.fromiter(map(len, encodings), np.int64, len(encodings)))
        all_ids = np.concatenate(ids)
        return all_ids if self._unknown is None else self._unknown[all_ids], np.concatenate(counts)

    def _audit(self, lines: list[str], ids: np.ndarray, counts: np.ndarray) -> str | None:
        """Encode a fixed share of the fast lines by tokenizers too: the first line that differs, or None."""
        numbers = range(len(lines))
        audited = sorted({*numbers[:AUDIT_FIRST], *numbers[::AUDIT_EVERY]})
        reference_ids, reference_counts = self._encode_by_reference([lines[number] for number in audited])
        expected = np.split(reference_ids, reference_counts.cumsum())  # and, last, what is behind the end: nothing
        ends = counts.cumsum()
        for number, ids_of_line in zip(audited, expected[:-1], strict=True):
            if not np.array_equal(ids[ends[number] - counts[number] : ends[number]], ids_of_line):
                return lines[number]
        return None


class WordCache:
    """Encodes lines with `tokenizers`, but each word only once: text repeats its words.

    BERT's rules and ours never look over a space, so a line's ids are those of its words. Several times as fast as line by line.
    """

    def __init__(self, encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]]) -> None:
        self.encode_new = encode
        self.clear()

    def clear(self) -> None:
        self.numbers: dict[str, int] = {}  # word -> its place in `ends`
        self.ids = np.empty(0, np.uint32)  # of all words, one after the other
        self.ends = np.empty(0, np.int64)
        self.num_bytes = 0

    def encode(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        words_of_lines = [line.split(" ") for line in lines]
        words = list(chain.from_iterable(words_of_lines))
        if self.num_bytes > MAX_CACHE_BYTES:
            self.clear()
        self._add([word for word in dict.fromkeys(words) if word not in self.numbers])
        numbers = np.fromiter(map(self.numbers.__getitem__, words), np.int64, len(words))
        ends = self.ends[numbers]
        sizes = ends - np.where(numbers > 0, self.ends[numbers - 1], 0)
        totals = np.concatenate([[0], sizes.cumsum()])
        places = np.repeat(ends - totals[1:], sizes) + np.arange(totals[-1])
        last_words = np.fromiter(map(len, words_of_lines), np.int64, len(lines)).cumsum()
        return self.ids[places], np.diff(totals[last_words], prepend=0)

    def _add(self, words: list[str]) -> None:
        ids, counts = self.encode_new(words)
        self.numbers.update(zip(words, range(len(self.ends), len(self.ends) + len(words)), strict=True))
        self.ends = np.concatenate([self.ends, len(self.ids) + counts.cumsum()])
        self.ids = np.concatenate([self.ids, ids])
        self.num_bytes += 160 * len(words) + sum(map(len, words)) + 4 * len(ids)  # an entry of a dict, measured


def splits_at_spaces(settings: dict[str, Any]) -> bool:
    """Whether a tokenizer.json follows BERT's rules or ours, whatever their options: it splits at spaces, first of all."""
    if any(token["normalized"] or not token["special"] for token in settings["added_tokens"]):
        return False
    return (settings["normalizer"], settings["pre_tokenizer"]) in subword_rules() or (
        settings["model"]["type"] == "WordPiece"
        and (settings["normalizer"] or {}).get("type") == "BertNormalizer"
        and settings["pre_tokenizer"] == {"type": "BertPreTokenizer"}
    )


def without_surrogates(lines: list[str]) -> list[str]:
    """Lone surrogates, which no UTF-8 text can hold, become U+FFFD; split pairs become their character."""
    if not _SURROGATE.search("".join(lines)):
        return lines
    return [line.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") for line in lines]


def block_bounds(lines: list[str], max_chars: int) -> list[tuple[int, int]]:
    """Where blocks of lines start and end that have about so many characters together."""
    ends = [*np.flatnonzero(np.diff(num_chars(lines).cumsum() // max_chars)) + 1, len(lines)]
    return list(zip([0, *ends[:-1]], ends, strict=True))

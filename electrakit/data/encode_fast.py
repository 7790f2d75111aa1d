"""Decides which lines tokie may encode: those on which it is known to give the ids of tokenizers, about 20 times as fast."""

import contextlib
import importlib.metadata
import json
import os
import tempfile
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
# tokie splits a text of more than 65,536 bytes for its threads, if need be inside a word.
MAX_FAST_CHARS = 65_536 // 4
AGREED_VERSIONS = {("0.1.4", "0.23.3")}  # of tokie and tokenizers: others were not compared


def can_agree(settings: dict[str, Any]) -> bool:
    """Whether tokie follows these settings of a tokenizer.json: the two of BERT (uncased, cased) and no other.

    tokie takes every BertNormalizer for one of these two: it ignores `clean_text=False`, `handle_chinese_chars=False`
    and a `strip_accents` that is not that of the casing. It renumbers a vocabulary with gaps. A special token that
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


def slow_path_notice(tokenizer_json: str) -> str:
    """One line for the user if tokie could encode this tokenizer's text, but is of a version that was not compared; else ""."""
    versions = installed_versions()
    if versions is None or versions in AGREED_VERSIONS or not can_agree(json.loads(tokenizer_json)):
        return ""
    known = " or ".join(f"tokie=={tokie} tokenizers=={tokenizers}" for tokie, tokenizers in sorted(AGREED_VERSIONS))
    return (
        "Encoding takes about 2.7 times as long as it could: tokie {} has not been compared with tokenizers {}; "
        "pip install {}".format(*versions, known)
    )


def installed_versions() -> tuple[str, str] | None:
    """Of tokie and tokenizers; None where tokie is not installed."""
    try:
        import tokie  # noqa: F401  # it may be installed and yet fail to load

        return importlib.metadata.version("tokie"), importlib.metadata.version("tokenizers")
    except ImportError:  # PackageNotFoundError is one too
        return None


def load_tokie(reference: Tokenizer) -> Any | None:
    """The same tokenizer in tokie, set to one thread; None where tokie is not installed, or of another version."""
    if installed_versions() not in AGREED_VERSIONS:
        return None
    import tokie

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(reference.to_str(), encoding="utf-8")
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


def num_chars(lines: list[str]) -> np.ndarray:
    return np.fromiter(map(len, lines), np.int64, len(lines))

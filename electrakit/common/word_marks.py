"""A vocabulary in, which of its tokens continue a word out: WordPiece marks these (##), other kinds mark what begins a word (▁ or Ġ).

Beside its mark a token begins a word if it begins with a symbol, or with a letter of a script that is written without spaces: there a
token is as near to a word as one can get, and a whole sentence would be one word otherwise.
"""

import functools
import re
import unicodedata
from collections.abc import Collection

CONTINUES = "##"
BYTE_LEVEL = "Ġ"  # the byte of a space, in the vocabularies of RoBERTa and ModernBERT
METASPACE = "▁"  # SentencePiece's, as in ALBERT and DeBERTa

# Scripts that are written without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese, Yi.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3040-\u312f\u3400-\u9fff\ua000-\ua4cf\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
JOINERS = "\u200c\u200d"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def word_mark(vocabulary: Collection[str]) -> str:
    """## of a WordPiece vocabulary, which marks tokens that continue a word; ▁ or Ġ, which mark those that begin one."""
    tokens = vocabulary if isinstance(vocabulary, dict | set) else set(vocabulary)
    for mark in (METASPACE, BYTE_LEVEL):
        # WordPiece has a character twice, if at all: at the start of a word, and inside.
        if mark in tokens and CONTINUES + mark not in tokens and not (mark == BYTE_LEVEL and "Ċ" not in tokens):
            return mark
    counts = {mark: sum(token.startswith(mark) for token in tokens) for mark in (CONTINUES, METASPACE, BYTE_LEVEL)}
    return max(counts, key=counts.__getitem__)  # the first of equals


def is_continuation(token: str, mark: str) -> bool:
    """Whether a token continues the word before it."""
    if mark == CONTINUES:
        return token.startswith(CONTINUES)
    if token.startswith(mark):
        return False
    first = first_character(token, mark)
    if first is None or first in JOINERS or unicodedata.category(first)[0] == "M":
        return True
    return first.isalnum() and not UNSPACED.match(first)


def token_text(token: str, mark: str) -> str:
    """What a token stands for in a text, without its mark; a part of a character is �."""
    if mark == CONTINUES:
        return token.removeprefix(CONTINUES) if len(token) > len(CONTINUES) else token
    data = token_bytes(token, mark)
    return token.removeprefix(METASPACE) if data is None else data.decode("utf-8", "replace").removeprefix(" ")


def token_bytes(token: str, mark: str) -> bytes | None:
    """The bytes of a token that is made of bytes; None for one of characters."""
    if mark == BYTE_LEVEL:
        numbers = [_bytes_of_letters().get(letter) for letter in token]
        return None if None in numbers else bytes(number for number in numbers if number is not None)
    found = _BYTE.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


def first_character(token: str, mark: str) -> str | None:
    """The first character of a token, for part of one some character of its block; None if the token begins inside a character."""
    data = token_bytes(token, mark)
    if data is None:
        return token[:1] or None
    if not data or 0x80 <= data[0] < 0xC0:
        return None
    for filling in (b"\xa8\xa8\xa8", b"\x80\x80\x80"):  # A8 may not follow ED and F4
        text = (data[:4] + filling).decode("utf-8", "replace")
        if text[0] != "\ufffd":
            return text[0]
    return None


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others are moved to U+0100 and up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [number for number in range(256) if number not in plain]
    return {chr(number): number for number in plain} | {
        chr(0x100 + place): number for place, number in enumerate(others)
    }

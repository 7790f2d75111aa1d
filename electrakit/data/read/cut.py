"""Cuts a stream of bytes into runs of whole documents; each can be read without the others."""

import io
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from electrakit.config.corpus import Splitting

MAX_DOCUMENTS = 4096  # in one run: very short ones need much more memory than their bytes
DOCUMENT_ENDS: dict[Splitting, bytes] = {"blank": b"\n\n", "line": b"\n", "file": b""}


class DocumentBytes(NamedTuple):
    """The bytes of some documents, whole except where one is too long."""

    data: bytes
    first_line: int
    key: int | None = None  # the first document is a section of a longer one; all its sections have this key
    is_first_section: bool = False
    is_too_long: bool = False  # a record that had to be left out; `data` is empty


def read_blocks(stream: io.BufferedReader, size: int) -> Iterator[bytes]:
    """The stream in blocks of about this size. Every line ends with \\n, whatever it ended with before."""
    held = b""  # a \r at the end of a block: is the next one \n?
    while block := stream.read(size):
        if held or b"\r" in block:
            block = held + block
            held = b"\r" if block.endswith(b"\r") else b""
            block = block.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield block
    if held:
        yield b"\n"


def cut_text(source: Iterable[bytes], splitting: Splitting, max_size: int) -> Iterator[DocumentBytes]:
    """Cut after the last whole document of every block, and by force what is longer than `max_size`.

    Where a long document is cut depends on nothing but the document, so that a copy of it gives the same sections.
    """
    buffer, line, key, num_searched = b"", 1, None, 0
    for block in source:
        buffer += block
        while True:
            if key is None:
                buffer, line = _without_blank_lines(buffer, line)
            window = buffer[:max_size]
            end = _last_end(window, splitting, num_searched, is_full=len(window) == max_size)
            if not end and len(window) < max_size:
                num_searched = len(window)
                break
            end = _with_fewer(window, DOCUMENT_ENDS[splitting], end)
            is_cut = not end
            is_first_section = is_cut and key is None
            if is_first_section:
                key = xxhash.xxh3_64_intdigest(window)
            end = end or _last_break(window)
            yield DocumentBytes(window[:end], line, key, is_first_section)
            line += window.count(b"\n", 0, end)
            buffer, key, num_searched = buffer[end:], key if is_cut else None, 0
    if buffer:
        yield DocumentBytes(buffer, line, key)


def cut_records(source: Iterable[bytes], mark: bytes, max_size: int) -> Iterator[DocumentBytes]:
    """Cut after the last `mark` of every block; a record longer than `max_size` is left out."""
    buffer, line, num_searched, is_skipping = b"", 1, 0, False
    for block in source:
        buffer += block
        while True:
            if is_skipping:
                end = buffer.find(mark) + len(mark)
                is_skipping = end < len(mark)
                end = max(0, len(buffer) - len(mark)) if is_skipping else end  # half a mark may stand at the end
                line += buffer.count(b"\n", 0, end)
                buffer, num_searched = buffer[end:], 0
                if is_skipping:
                    break
            buffer, line = _without_blank_lines(buffer, line)
            window = buffer[:max_size]
            end = window.rfind(mark, max(0, num_searched - len(mark)))
            if end >= 0:
                end = _with_fewer(window, mark, end + len(mark))
                yield DocumentBytes(window[:end], line)
                line += window.count(b"\n", 0, end)
                buffer, num_searched = buffer[end:], 0
            elif len(window) == max_size:
                yield DocumentBytes(b"", line, is_too_long=True)
                is_skipping = True
            else:
                num_searched = len(window)
                break
    if buffer and not is_skipping:
        yield DocumentBytes(buffer, line)


def _without_blank_lines(buffer: bytes, line: int) -> tuple[bytes, int]:
    """Blank lines between documents belong to none: the next one begins where something can be seen."""
    stripped = buffer.lstrip()
    return stripped, line + buffer.count(b"\n", 0, len(buffer) - len(stripped))


def _with_fewer(window: bytes, mark: bytes, end: int) -> int:
    """An earlier end where so many documents end before this one that their rows would fill the memory."""
    while mark and window.count(mark, 0, end) > MAX_DOCUMENTS:
        earlier = window.rfind(mark, 0, end // 2)
        if earlier < 0:
            break
        end = earlier + len(mark)
    return end


def _last_end(window: bytes, splitting: Splitting, num_searched: int, is_full: bool) -> int:
    """The end of the last whole document, 0 if there is none."""
    if splitting == "file":
        return 0
    if splitting == "line":
        return window.rfind(b"\n", num_searched) + 1
    end = window.rfind(b"\n\n", max(0, num_searched - 1)) + 2
    if end >= 2:
        return end
    if is_full:  # look again, slowly, before it is cut by force
        return max((match.end() for match in _BLANK_LINE.finditer(window)), default=0)
    return 0


def _last_break(window: bytes) -> int:
    """Where a document that is too long is cut: after a line, else after a word, else between two characters.

    What follows begins with something visible: a blank line there would be taken for the end of the document.
    """
    end_of_text = len(window.rstrip())
    for mark in (b"\n", b" ", b"\t"):
        if end := window.rfind(mark, 0, end_of_text) + 1:
            return end
    for end in range(end_of_text - 1, max(0, end_of_text - 5), -1):
        if window[end] & 0xC0 != 0x80:  # not inside a UTF-8 sequence
            return end
    return len(window)


_BLANK_LINE = re.compile(rb"\n[ \t\f\v]*\n")

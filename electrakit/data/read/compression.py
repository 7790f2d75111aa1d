"""Decompresses files, also those of several streams, as pbzip2, pixz and Wikimedia write them.

Python's standard readers silently stop at a stream whose first bytes are damaged: they take it for garbage behind the end.
"""

import bz2
import functools
import gzip
import io
import lzma
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import zstandard

from electrakit.data.read.notes import Notes

Decompressor: TypeAlias = "bz2.BZ2Decompressor | lzma.LZMADecompressor | _Zstd"  # of one stream


@dataclass(frozen=True)
class Compression:
    """How a compressed stream begins, and what decompresses it."""

    name: str
    magic: re.Pattern[bytes]
    decompressor: Callable[[], Decompressor] | None  # None: the standard reader is good enough
    can_be_found: bool = False  # its magic is so long that no other bytes look like it
    may_be_padded: bool = False  # with zeros, four by four, behind each stream
    num_read: int = 2**16  # bytes at a time


class Counted:
    """Counts the bytes that a decompressor takes."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.count += len(data)
        return data

    def num_bytes(self) -> int:
        return self.count


def compression_of(head: bytes) -> Compression | None:
    return next((one for one in COMPRESSIONS if one.magic.match(head)), None)


def decompressing(source: Counted, compression: Compression, name: str, notes: Notes) -> Any:
    """Something with `read1`; a damaged part between two that can be read is noted."""
    if compression.decompressor is None:
        return gzip.GzipFile(fileobj=source)  # type: ignore[call-overload]  # it only reads
    return _Streams(source, compression, name, notes)


class _Streams:
    """All streams of a file. Damage raises an error, unless the file is text and another stream can be found behind it."""

    def __init__(self, source: Counted, compression: Compression, name: str, notes: Notes) -> None:
        self.source, self.compression, self.name, self.notes = source, compression, name, notes
        self.stream: Decompressor | None = None
        self.waiting = b""  # read, but not yet given to a decompressor
        self.given = b""  # the last bytes that were given to it
        self.is_first = False  # these are the beginning of its stream
        self.num_out = 0
        self.head = b""  # of the content
        self.damage: Exception | None = None  # that stands before all content

    def read1(self, size: int) -> bytes:
        data = b""
        while not data:
            try:
                if self.stream is None and not self._begin():
                    return b""
                data = self._decompress(size)
            except (OSError, lzma.LZMAError, zstandard.ZstdError) as error:
                if not self._find_next(error):
                    raise
                data = b"\n\n" if self.head else b""  # the texts before and behind it do not belong together
        if self.damage is not None and not _is_text(data):
            raise self.damage
        self.num_out += len(data)
        if not self.head:
            self.head, self.damage = data[:512], None
        return data

    def _begin(self) -> bool:
        """Whether there is another stream."""
        num_zeros = 0
        while True:
            self.waiting = self.waiting or self.source.read(self.compression.num_read)
            rest = self.waiting.lstrip(b"\0") if self.compression.may_be_padded else self.waiting
            num_zeros += len(self.waiting) - len(rest)
            if rest or not self.waiting:
                break
            self.waiting = b""
        self.waiting = rest
        if not rest and num_zeros % 4 == 0:
            return False
        if len(rest) < LONGEST_MAGIC:
            self.waiting += self.source.read(LONGEST_MAGIC - len(rest))
        if num_zeros % 4 or not self.compression.magic.match(self.waiting):
            where = self.source.count - len(self.waiting)
            self.given, self.waiting, self.is_first = self.waiting, b"", False
            raise OSError(f"no {self.compression.name} stream at byte {where:,} of the compressed file")
        assert self.compression.decompressor is not None
        self.stream = self.compression.decompressor()
        return True

    def _decompress(self, size: int) -> bytes:
        stream, given = self.stream, b""
        assert stream is not None
        if stream.needs_input:
            self.is_first = bool(self.waiting)
            self.given = given = self.waiting or self.source.read(self.compression.num_read)
            self.waiting = b""
            if not given:
                raise EOFError
        data = stream.decompress(given, size)
        if stream.eof:
            self.waiting, self.stream = stream.unused_data, None
        return data

    def _find_next(self, error: Exception) -> bool:
        """Whether a stream begins behind the damage: it is the next to be read."""
        self.stream = None
        if not self.compression.can_be_found or not _is_text(self.head):
            return False
        data, start = self.given, int(self.is_first)
        while (found := self.compression.magic.search(data, start)) is None:
            chunk = self.source.read(self.compression.num_read)
            if not chunk:
                return False
            data, start = data[max(start, len(data) - LONGEST_MAGIC + 1) :] + chunk, 0
        self.waiting = data[found.start() :]
        place = self.source.count - len(self.waiting)
        where = f"{self.name} at byte {self.num_out:,}: {error}; read on at byte {place:,} of the compressed file"
        self.notes.add("damaged part of a compressed file; left out", where)
        self.damage = None if self.head else error
        return True


def _is_text(data: bytes) -> bool:
    """Text with a hole is text; an archive with a hole is no archive."""
    return b"\0" not in data and compression_of(data) is None


class _Zstd:
    """zstandard's decompressor with the interface of bz2 and lzma."""

    def __init__(self) -> None:
        self.frame: Any = zstandard.ZstdDecompressor().decompressobj()
        self.pending = b""
        self.needs_input, self.eof = True, False

    @property
    def unused_data(self) -> bytes:
        return bytes(self.frame.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        pending = self.pending or self.frame.decompress(data)
        self.pending = pending[max_length:]
        self.needs_input = not self.pending
        self.eof = self.needs_input and self.frame.eof
        return bytes(pending[:max_length])


LONGEST_MAGIC = 10
COMPRESSIONS = (
    Compression("gzip", re.compile(rb"\x1f\x8b\x08"), None),
    Compression(
        "xz",
        re.compile(rb"\xfd7zXZ\x00\x00[\x00\x01\x04\x0a]"),
        functools.partial(lzma.LZMADecompressor, memlimit=2**28),  # xz -9 needs 65 MB; a header may ask for 4 GB
        can_be_found=True,
        may_be_padded=True,
    ),
    Compression("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), bz2.BZ2Decompressor, can_be_found=True),
    # a frame, or one to be skipped, as pzstd begins. It has no max_length: 1024 bytes become 32 MB at the most
    Compression("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _Zstd, num_read=1024),
)

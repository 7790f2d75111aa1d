"""Finds files, opens them as streams of decompressed bytes, and survives damaged data."""

import codecs
import functools
import glob
import io
import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

from electrakit.common.errors import UserError, first_line
from electrakit.config.corpus import SHARDS_MANIFEST
from electrakit.data.read.compression import Counted, compression_of, decompressing
from electrakit.data.read.notes import BEFORE_IS_KEPT, Notes

MAX_RATIO = 250  # text compresses 3 to 10 times, a repetitive log perhaps 100 times
FREE_BYTES = 16 * 2**20  # on top of that, once for each input: a small file may be as repetitive as it likes
TOO_MUCH = f"decompresses to more than {MAX_RATIO} times its size; the rest is left out"


# --- names -----------------------------------------------------------------------------------------------------------


def find_files(pattern: str, notes: Notes) -> list[str]:
    """The files that a file name, a folder or a glob stands for, sorted."""
    path = Path(pattern)
    if path.is_file() or path.is_fifo():
        return [str(path)]
    named = [path] if path.is_dir() else sorted(map(Path, glob.glob(pattern, recursive=True)))  # noqa: PTH207 (absolute too)
    if not named:
        raise UserError(f"no such file or folder: {pattern!r}; name a file, a folder, a glob, - or builtin:python")
    files: set[str] = set()
    for one in named:
        files.update(_files_below(one, notes, is_named=one == path) if one.is_dir() else _files_among([one], notes))
    if not files:
        raise UserError(f"no files in {pattern!r}; name a folder that has some (hidden ones do not count)")
    return sorted(files)


def real_path(path: str) -> str:
    """The one name of a file that can be reached by several."""
    one = Path(path)
    return str(one.resolve()) if one.is_symlink() else f"{_real_folder(one.parent.absolute())}/{one.name}"


@functools.lru_cache(maxsize=1024)
def _real_folder(folder: Path) -> Path:
    return folder.resolve()


def _files_below(top: Path, notes: Notes, is_named: bool) -> Iterator[str]:
    """Every file of a folder and its subfolders. Links are followed, but no folder is entered twice.

    Tokenizers and shards that this program wrote are no corpus, unless the user names them.
    """

    def failed(error: OSError) -> None:
        notes.add(f"folder cannot be read ({error.strerror})", str(error.filename))

    entered = {top.resolve()}
    for base, folders, names in os.walk(top, onerror=failed, followlinks=True):
        if _is_our_output(Path(base), names) and not (is_named and Path(base) == top):
            notes.add("folder of a tokenizer or of shards; left out (name it to read it)", base)
            folders.clear()
            continue
        for name in sorted([*folders, *names]):
            if name.startswith("."):
                notes.add("hidden file passed over", str(Path(base, name)))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in list(folders):
            real = Path(base, name).resolve()
            if real in entered:
                notes.add("folder reached twice; read once", str(Path(base, name)))
                folders.remove(name)
            entered.add(real)
        yield from _files_among([Path(base, name) for name in sorted(names) if not name.startswith(".")], notes)


def _is_our_output(folder: Path, names: list[str]) -> bool:
    """Whether a folder holds a tokenizer, or shards; a manifest.json begins with its format."""
    if {"tokenizer.json", "vocab.txt"} <= set(names):
        return True
    if SHARDS_MANIFEST not in names:
        return False
    try:
        with (folder / SHARDS_MANIFEST).open("rb") as file:
            return _OUR_MANIFEST.match(file.read(200)) is not None
    except OSError:
        return False


def _files_among(paths: list[Path], notes: Notes) -> Iterator[str]:
    for path in paths:
        if path.is_file():
            yield str(path)
        elif path.is_symlink():
            notes.add("link that leads nowhere; left out", str(path))
        else:
            notes.add("not a file but a device, pipe or socket; left out", str(path))


# --- streams ---------------------------------------------------------------------------------------------------------


class Allowance:
    """How much one input may decompress to, all its layers and members together: MAX_RATIO times its size and FREE_BYTES."""

    def __init__(self, num_bytes_in: Callable[[], int]) -> None:
        self.num_bytes_in = num_bytes_in
        self.num_bytes_out = 0
        self.num_free = FREE_BYTES  # shared by all its members, for those that exceed the ratio

    def is_used_up(self, num_new: int, num_excess: int = 0) -> bool:
        """Whether `num_new` bytes more, of which `num_excess` exceed the ratio of their own stream, are too many."""
        if num_excess > self.num_free:
            return True
        self.num_free -= num_excess
        self.num_bytes_out += num_new
        return self.num_bytes_out > MAX_RATIO * self.num_bytes_in() + FREE_BYTES


class _Stream(io.RawIOBase):
    """A file whose bytes come from `pull`. Reads are always full, so that a peek shows as much as there is."""

    def pull(self, size: int) -> bytes:
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        position = 0
        while position < len(buffer) and (data := self.pull(len(buffer) - position)):
            buffer[position : position + len(data)] = data
            position += len(data)
        return position


class Joined(_Stream):
    """What has been read already, and the rest of the stream."""

    def __init__(self, start: bytes, rest: io.BufferedReader) -> None:
        self.start, self.rest = io.BytesIO(start), rest

    def pull(self, size: int) -> bytes:
        return self.start.read(size) or self.rest.read(size)


class Guarded(_Stream):
    """Reads from `source` and never raises for damaged data: it notes the damage, and the stream ends there.

    A stream that is cut short because the stream `below` it was is not noted a second time.
    A read error of the disk or the network does raise: the file may be fine the next time.
    """

    def __init__(
        self, source: Any, name: str, notes: Notes, max_read: int = 2**20, below: io.BufferedReader | None = None
    ) -> None:
        self.source, self.name, self.notes, self.max_read, self.below = source, name, notes, max_read, below
        self.read_some = source.read1 if hasattr(source, "read1") else source.read
        self.num_bytes_out = 0
        self.is_over = False

    def pull(self, size: int) -> bytes:
        if self.is_over:
            return b""
        try:
            data: bytes = self.read_some(min(size, self.max_read))
        except EOFError:
            return self.stop("compressed file is cut off", kept=BEFORE_IS_KEPT, is_cut=True)
        except UserError:
            raise
        except DAMAGE as error:
            # An OSError of the file itself is the disk's or the network's, not the data's.
            if isinstance(error, OSError) and isinstance(self.source, io.FileIO):
                why = f"{error.strerror}; start the same command again to resume"
                raise UserError(f"cannot read {self.name}: {why}") from None
            is_cut = isinstance(error, tarfile.ReadError)
            return self.stop("damaged file", first_line(error, 80), BEFORE_IS_KEPT, is_cut)
        self.num_bytes_out += len(data)
        return data

    def drain(self) -> None:
        """Read to the end, so that the stream below stands behind it."""
        while self.pull(2**20):
            pass

    def stop(self, problem: str, why: str = "", kept: str = "", is_cut: bool = False) -> bytes:
        where = f"{self.name} at byte {self.num_bytes_out:,}"
        if not (is_cut and ends_too_early(self.below)):
            self.notes.add(problem, f"{where}: {why}" if why else where, kept=kept)
        self.is_over = True
        return b""

    def seekable(self) -> bool:
        return isinstance(self.source, io.FileIO) and self.source.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.source.seek(offset, whence)

    def tell(self) -> int:
        return self.source.tell()


class Decompressed(Guarded):
    """Also ends where so much comes out of so few bytes that it can only be a decompression bomb."""

    def __init__(
        self,
        source: Any,
        name: str,
        notes: Notes,
        allowance: Allowance,
        num_bytes_in: Callable[[], int],
        max_read: int = 2**20,
        below: io.BufferedReader | None = None,
    ) -> None:
        super().__init__(source, name, notes, max_read, below)
        self.allowance, self.num_bytes_in, self.num_excess = allowance, num_bytes_in, 0

    def pull(self, size: int) -> bytes:
        data = super().pull(size)
        num_excess = max(self.num_excess, self.num_bytes_out - MAX_RATIO * self.num_bytes_in())
        if data and self.allowance.is_used_up(len(data), num_excess - self.num_excess):
            return self.stop(TOO_MUCH)
        self.num_excess = num_excess
        return data


def ends_too_early(stream: io.BufferedReader | None) -> bool:
    """Whether the stream is at its end, and ends there because it is damaged, which has been noted."""
    return stream is not None and getattr(stream.raw, "is_over", False) and not stream.peek(1)


def buffered(raw: io.RawIOBase, size: int = 2**20) -> io.BufferedReader:
    return io.BufferedReader(raw, size)


def opened(stream: io.BufferedReader, name: str, notes: Notes, allowance: Allowance) -> io.BufferedReader:
    """The stream as UTF-8 or binary content: decompressed up to 3 times, if it was compressed that often."""
    for _ in range(3):
        compression = compression_of(stream.peek(10))
        if compression is None:
            break
        source = Counted(stream)
        content = decompressing(source, compression, name, notes)
        stream = buffered(Decompressed(content, name, notes, allowance, source.num_bytes, below=stream))
    head = stream.peek(2**12)
    mark = next((mark for mark in _BYTE_ORDER_MARKS if head.startswith(mark)), None)
    if mark is not None:
        stream.read(len(mark))
    encoding = _utf_16_without_mark(head) if mark is None else _BYTE_ORDER_MARKS[mark]
    if encoding is None or encoding == "utf-8":
        return stream
    notes.add(f"read as {encoding[:6].upper()}", name)
    return buffered(Transcoded(stream, encoding, name, notes))


def _utf_16_without_mark(head: bytes) -> str | None:
    """Which byte order it is, if every other byte is 0, as in English text."""
    for first, encoding in enumerate(("utf-16-be", "utf-16-le")):
        if len(head) >= 8 and head[first::2].count(0) > 0.8 * len(head[first::2]) and head.count(0) < 0.6 * len(head):
            return encoding
    return None


class Transcoded(_Stream):
    """Text in any encoding in, UTF-8 out."""

    def __init__(self, stream: io.BufferedReader, encoding: str, name: str, notes: Notes) -> None:
        self.stream, self.decoder, self.pending = stream, codecs.getincrementaldecoder(encoding)("replace"), b""
        self.name, self.notes, self.encoding = name, notes, encoding.upper().removesuffix("-LE").removesuffix("-BE")

    def pull(self, size: int) -> bytes:
        data = b"start"
        while data and not self.pending:
            data = self.stream.read(2**16)
            text = self.decoder.decode(data, final=not data)
            if "\ufffd" in text:
                self.notes.add(f"broken {self.encoding}; left out", self.name, text.count("\ufffd"))
            self.pending = text.replace("\ufffd", "").encode("utf-8", "replace")
        out, self.pending = self.pending[:size], self.pending[size:]
        return out


_OUR_MANIFEST = re.compile(rb'\s*\{\s*"format":\s*\d+,\s*"electrakit":')
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RecursionError,  # tarfile, for thousands of headers without a file
    struct.error,
    lzma.LZMAError,
    zlib.error,
    zstandard.ZstdError,
    tarfile.TarError,
    zipfile.BadZipFile,
)

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}

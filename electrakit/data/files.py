"""Names in, streams of bytes out: finds files, opens compressed ones and archives, and survives what is wrong with them."""

import bz2
import codecs
import glob
import gzip
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import zstandard

from electrakit.errors import UserError

MAX_RATIO = 250  # text compresses 3 to 10 times, a repetitive log perhaps 100 times
FREE_BYTES = 64 * 2**20  # below this much output the ratio is not looked at
MAX_EXAMPLES = 5


class Notes:
    """What was met on the way that a person should know: how often, and where first."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}

    def add(self, what: str, where: str, count: int = 1) -> None:
        self.counts[what] += count
        examples = self.examples.setdefault(what, [])
        if len(examples) < MAX_EXAMPLES and where not in examples:
            examples.append(where)

    def merge(self, other: "Notes") -> None:
        for what, count in other.counts.items():
            self.counts[what] += count
            examples = self.examples.setdefault(what, [])
            examples += [where for where in other.examples[what] if where not in examples][
                : MAX_EXAMPLES - len(examples)
            ]

    def as_json(self) -> dict[str, Any]:
        return {what: {"count": count, "first": self.examples[what]} for what, count in self.counts.items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Notes":
        notes = cls()
        for what, entry in stored.items():
            notes.counts[what] = entry["count"]
            notes.examples[what] = list(entry["first"])
        return notes


def find_files(pattern: str, notes: Notes) -> list[Path]:
    """The files that a file name, a folder or a glob stands for, sorted."""
    path = Path(pattern)
    if path.is_file() or path.is_fifo():
        return [path]
    if path.is_dir():
        found = sorted(path.rglob("*"))
        base = path
    else:
        found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
        base = Path()
        if not found:
            raise UserError(f"no such file or folder: {pattern!r}; name a file, a folder, a glob, - or builtin:python")
        folders = [one for one in found if one.is_dir()]
        found = sorted({*found, *(inner for folder in folders for inner in folder.rglob("*"))})
    files = []
    for one in found:
        if not one.is_file():
            continue
        if any(part.startswith(".") for part in one.relative_to(base).parts if part != ".."):
            notes.add("hidden file passed over", str(one))
        else:
            files.append(one)
    if not files:
        raise UserError(f"no files in {pattern!r}; name a folder that has some")
    return files


def buffered(raw: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(raw, 2**20)


def opened(stream: io.BufferedReader, name: str, notes: Notes) -> io.BufferedReader:
    """The stream as UTF-8 or binary content: decompressed as often as it is compressed (3 times at the most)."""
    for _ in range(3):
        head = stream.peek(6)
        opener = next((opener for magic, opener in _DECOMPRESSORS.items() if head.startswith(magic)), None)
        if opener is None:
            break
        source = _Counted(stream)
        stream = buffered(Guarded(opener(source), name, notes, num_bytes_in=lambda source=source: source.count))  # type: ignore[misc]
    head = stream.peek(4)
    for mark, encoding in ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):  # fmt: skip
        if head.startswith(mark):
            notes.add(f"read as {encoding.upper()}", name)
            return buffered(_Transcoded(stream, encoding))
    return stream


class Guarded(io.RawIOBase):
    """Reads from `source` and never raises for damaged data: it notes the damage, and the stream ends there."""

    def __init__(self, source: Any, name: str, notes: Notes, num_bytes_in: Callable[[], int] | None = None) -> None:
        self.source, self.name, self.notes, self.num_bytes_in = source, name, notes, num_bytes_in
        self.num_bytes_out = 0
        self.is_over = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.is_over:
            return 0
        try:
            data = self.source.read1(len(buffer))
        except EOFError:
            return self._stop("compressed file is cut off; what came before is kept")
        except _DAMAGE as error:
            return self._stop(f"damaged file ({_in_short(error)}); what came before is kept")
        self.num_bytes_out += len(data)
        if self.num_bytes_in is not None and self.num_bytes_out > max(FREE_BYTES, MAX_RATIO * self.num_bytes_in()):
            return self._stop(f"decompresses to more than {MAX_RATIO} times its size; the rest is left out")
        buffer[: len(data)] = data
        return len(data)

    def _stop(self, what: str) -> int:
        self.notes.add(what, f"{self.name} at byte {self.num_bytes_out:,}")
        self.is_over = True
        return 0


class _Counted:
    """Counts the bytes that a decompressor takes."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.count += len(data)
        return data


class _ZstdReader:
    """A .zst file, of one or more frames; unlike zstandard's own reader it raises EOFError when the file is cut off."""

    def __init__(self, source: _Counted) -> None:
        self.source, self.pending, self.waiting, self.frame = source, b"", b"", None

    def read1(self, size: int) -> bytes:
        while not self.pending:
            # 8 kB at a time: one call cannot blow up to gigabytes
            chunk = self.waiting or self.source.read(8192)
            self.waiting = b""
            if not chunk:
                if self.frame is not None:
                    raise EOFError
                return b""
            frame: Any = self.frame or zstandard.ZstdDecompressor().decompressobj()
            self.pending = frame.decompress(chunk)
            self.waiting = frame.unused_data
            self.frame = None if frame.eof else frame
        data, self.pending = self.pending[:size], self.pending[size:]
        return data


class _Transcoded(io.RawIOBase):
    """UTF-16 or UTF-32 in, UTF-8 out."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self.stream, self.decoder, self.pending = stream, codecs.getincrementaldecoder(encoding)("replace"), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.pending:
            data = self.stream.read1(2**16)
            self.pending = self.decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        data, self.pending = self.pending[: len(buffer)], self.pending[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def tar_members(stream: io.BufferedReader, name: str, notes: Notes) -> Iterator[tuple[str, io.BufferedReader]]:
    """The regular files of a tar stream, one after the other; nothing is written to disk."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                where = f"{name}:{member.name}"
                if member.isdir():
                    continue
                if not member.isreg():
                    notes.add("archive member is a link or device; left out", where)
                elif not _is_safe(member.name):
                    notes.add("archive member has an unsafe name; left out", where)
                elif (content := archive.extractfile(member)) is not None:
                    yield where, buffered(Guarded(content, where, notes))
    except _DAMAGE as error:
        notes.add(f"damaged archive ({_in_short(error)}); what came before is kept", name)


def zip_members(file: Any, name: str, notes: Notes) -> Iterator[tuple[str, io.BufferedReader]]:
    """The regular files of a zip archive, one after the other; nothing is written to disk."""
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                where = f"{name}:{member.filename}"
                if member.is_dir():
                    continue
                if stat.S_ISLNK(member.external_attr >> 16):
                    notes.add("archive member is a link or device; left out", where)
                elif not _is_safe(member.filename):
                    notes.add("archive member has an unsafe name; left out", where)
                elif member.flag_bits & 1:
                    notes.add("archive member is encrypted; left out", where)
                else:
                    size = max(1, member.compress_size)
                    with archive.open(member) as content:
                        yield where, buffered(Guarded(content, where, notes, num_bytes_in=lambda size=size: size))  # type: ignore[misc]
    except (*_DAMAGE, NotImplementedError, RuntimeError) as error:
        notes.add(f"damaged archive ({_in_short(error)}); what came before is kept", name)


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and not name[1:3] == ":\\"


def _in_short(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:80]


_DAMAGE = (
    OSError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
    zstandard.ZstdError,
    tarfile.TarError,
    zipfile.BadZipFile,
    ValueError,
)

_DECOMPRESSORS: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda source: gzip.GzipFile(fileobj=source),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
    b"\x28\xb5\x2f\xfd": _ZstdReader,
}

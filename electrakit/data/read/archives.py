"""Reads the files of a tar or zip archive as streams, one after the other; nothing is extracted to disk."""

import functools
import io
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Self

from electrakit.common.errors import UserError, first_line
from electrakit.data.read.files import DAMAGE, Allowance, Decompressed, Guarded, buffered, ends_too_early
from electrakit.data.read.notes import BEFORE_IS_KEPT, Notes

MAX_HEADER_BYTES = 2**20  # of one member of a tar archive: names, dates, owners
Members = Iterator[tuple[str, io.BufferedReader]]  # name and content


def tar_members(stream: io.BufferedReader, name: str, notes: Notes) -> Members:
    """The regular files of a tar stream."""
    source = _WithShortHeaders(stream)
    guarded: Guarded | None = None
    try:
        with tarfile.open(fileobj=source, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]  # it only reads
            while (member := archive.next()) is not None:
                archive.members = []  # it remembers them all, and there may be millions
                source.num_allowed = None
                where = f"{name}:{member.name}"
                num_to_skip = member.size
                is_regular = member.isreg() and not member.issparse()
                if not member.isdir() and _may_be_read(member.name, where, notes, is_regular):
                    content = _Section(archive.fileobj, member.offset_data, member.size, tarfile.ReadError)
                    guarded = Guarded(content, where, notes, below=stream)
                    yield where, buffered(guarded, min(2**20, max(2**13, member.size)))
                    guarded.drain()  # what follows is a header
                    num_to_skip = 0
                source.num_allowed = num_to_skip + MAX_HEADER_BYTES
            source.num_allowed = None
            while rest := archive.fileobj.read(2**20):
                if rest.strip(b"\0"):
                    notes.add("data after the end of an archive; left out", name)
                    break
    except UserError:
        raise
    except DAMAGE as error:
        is_noted = ends_too_early(stream) or (guarded is not None and guarded.is_over)
        if not is_noted:
            notes.add("damaged archive", f"{name}: {first_line(error, 80)}", kept=BEFORE_IS_KEPT)


class _Header(tarfile.TarInfo):
    """Raises for a header that cannot be read: tarfile would take it for the end of the archive, unless it is the first."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros: the end
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error) or "a header is damaged") from None


class _WithShortHeaders:
    """Lets tarfile read a limited number of bytes between two members: it would keep a header of gigabytes in memory."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.stream = stream
        self.num_allowed: int | None = MAX_HEADER_BYTES

    def read(self, size: int) -> bytes:
        data = self.stream.read(size)
        if self.num_allowed is not None:
            self.num_allowed -= len(data)
            if self.num_allowed < 0:
                raise tarfile.ReadError(f"header of more than {MAX_HEADER_BYTES >> 10} kB")
        return data


def zip_members(
    file: Any, name: str, notes: Notes, allowance: Allowance, below: io.BufferedReader | None = None
) -> Members:
    """The regular files of a zip archive. `file` may be a copy of the stream `below`."""
    try:
        archive = zipfile.ZipFile(file)
        if min((one.header_offset for one in archive.infolist()), default=0):
            raise zipfile.BadZipFile("the directory at its end is that of an archive inside it")
    except UserError:
        raise
    except (*DAMAGE, NotImplementedError) as error:
        if not ends_too_early(below):
            kept = "the members that can be found are kept"
            notes.add("damaged archive", f"{name}: {first_line(error, 80)}", kept=kept)
        yield from _members_without_directory(file, name, notes, allowance)
        return
    for member in archive.infolist():
        where = f"{name}:{member.filename}"
        is_regular = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
        if member.is_dir() or not _may_be_read(member.filename, where, notes, is_regular, bool(member.flag_bits & 1)):
            continue
        checksum = member.CRC
        del member.CRC  # zipfile would compare it in the read that gives the last data, and keep the data
        try:
            content = archive.open(member)
        except UserError:
            raise
        except (*DAMAGE, NotImplementedError, RuntimeError) as error:
            notes.add("damaged archive member; left out", f"{where}: {first_line(error, 80)}")
            continue
        # a read that meets damage gives nothing, so they are small;
        # but for deflate, zipfile decompresses all that it has read in one go
        max_read = 2**14 if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 4096
        num_bytes_in = functools.partial(int, member.compress_size)
        with content:
            checked = _Checked(content, checksum)
            yield where, buffered(Decompressed(checked, where, notes, allowance, num_bytes_in, max_read))


def _members_without_directory(file: Any, name: str, notes: Notes, allowance: Allowance) -> Members:
    """The regular files of a zip archive that has lost its end, and with it the list of its members."""
    position = 0
    while (found := _next_header(file, position)) is not None:
        file.seek(found)
        header = file.read(30)
        if len(header) < 30:
            return
        flags, method, checksum, size, _, num_name, num_extra = struct.unpack("<6xHH4xIIIHH", header)
        raw_name = file.read(num_name)
        if len(raw_name) < num_name:
            return
        member = raw_name.decode("utf-8" if flags & 0x800 else "cp437", "replace")
        where = f"{name}:{member}"
        start = found + 30 + num_name + num_extra
        is_open = bool(flags & 8) or size == 0xFFFFFFFF  # its size stands behind it, or in a field for large files
        position = start if is_open else start + size
        if member.endswith("/") or not _may_be_read(member, where, notes, is_encrypted=bool(flags & 1)):
            continue
        if method != zipfile.ZIP_DEFLATED and (method != zipfile.ZIP_STORED or is_open):
            notes.add("archive member cannot be read without the archive's directory; left out", where)
            continue
        section = _Section(file, start, sys.maxsize if is_open else size, EOFError)
        content = _Deflated(section) if method == zipfile.ZIP_DEFLATED else section
        checked = _Checked(content, None if flags & 8 else checksum)
        stream = Decompressed(checked, where, notes, allowance, section.num_read, 2**14)
        yield where, buffered(stream)
        if is_open:
            stream.drain()
            position = section.position  # the next one begins where this one ends


def _next_header(file: Any, position: int) -> int | None:
    """Where the next member of a zip archive begins."""
    mark, before = b"PK\x03\x04", b""
    file.seek(position)
    while chunk := file.read(2**16):
        data = before + chunk
        if (found := data.find(mark)) >= 0:
            return position - len(before) + found
        position += len(chunk)
        before = data[-3:]
    return None


class _Section:
    """Some bytes of a file. Unlike tarfile's reader, it does not lose what stands before the end of a cut-off archive."""

    def __init__(self, file: Any, start: int, size: int, error: type[Exception]) -> None:
        self.file, self.start, self.position, self.end, self.error = file, start, start, start + size, error

    def num_read(self) -> int:
        return self.position - self.start

    def read1(self, size: int) -> bytes:
        self.file.seek(self.position)
        data: bytes = self.file.read(min(size, self.end - self.position))
        self.position += len(data)
        if not data and self.position < self.end:
            raise self.error("unexpected end of data")
        return data


class _Deflated:
    """The content of a deflated member, which marks its own end: there the section ends too."""

    def __init__(self, section: _Section) -> None:
        self.section, self.stream = section, zlib.decompressobj(-15)

    def read1(self, size: int) -> bytes:
        data = b""
        while not data and not self.stream.eof:
            chunk = self.stream.unconsumed_tail or self.section.read1(2**14)
            data = self.stream.decompress(chunk, size)
            if self.stream.eof:
                self.section.position -= len(self.stream.unused_data)
            elif not chunk and not data:
                raise EOFError
        return data


class _Checked:
    """A member of a zip archive whose checksum, if it is known, is compared after its last byte, as gzip does."""

    def __init__(self, content: Any, checksum: int | None) -> None:
        self.content, self.checksum, self.checksum_so_far = content, checksum, 0

    def read1(self, size: int) -> bytes:
        data: bytes = self.content.read1(size)
        self.checksum_so_far = zlib.crc32(data, self.checksum_so_far)
        if not data and self.checksum not in (None, self.checksum_so_far):
            raise zipfile.BadZipFile("wrong checksum")
        return data


def _may_be_read(name: str, where: str, notes: Notes, is_regular: bool = True, is_encrypted: bool = False) -> bool:
    """Whether a member can and should be read; if not, it is noted."""
    path = PurePosixPath(name.replace("\\", "/"))
    if not is_regular:
        problem = "is a link, device or sparse file"
    elif path.is_absolute() or ".." in path.parts or name[1:3] in (":\\", ":/"):
        problem = "has an unsafe name"
    elif is_encrypted:
        problem = "is encrypted"
    else:
        return True
    notes.add(f"archive member {problem}; left out", where)
    return False

"""Reads the files of a tar or zip archive as streams, one after the other; nothing is extracted to disk."""

import functools
import io
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any, Self

from electrakit.common.errors import UserError, first_line
from electrakit.data.read.files import (
    BEFORE_IS_KEPT,
    DAMAGE,
    Allowance,
    Decompressed,
    Guarded,
    buffered,
    ends_too_early,
)
from electrakit.data.read.notes import Notes

MAX_HEADER_BYTES = 2**20  # of one member of a tar archive: names, dates, owners


def tar_members(stream: io.BufferedReader, name: str, notes: Notes) -> Iterator[tuple[str, io.BufferedReader]]:
    """The regular files of a tar stream, one after the other; nothing is written to disk."""
    source = _WithShortHeaders(stream)
    guarded: Guarded | None = None
    try:
        with tarfile.open(fileobj=source, mode="r|", tarinfo=_Header) as archive:  # type: ignore[call-overload]  # it only reads
            while (member := archive.next()) is not None:
                archive.members = []  # it remembers them all, and there may be millions
                source.num_allowed = None
                where = f"{name}:{member.name}"
                num_to_skip = member.size
                if not member.isreg() or member.issparse():
                    if not member.isdir():
                        notes.add("archive member is a link, device or sparse file; left out", where)
                elif not is_safe(member.name):
                    notes.add("archive member has an unsafe name; left out", where)
                else:
                    guarded = Guarded(_TarMember(archive.fileobj, member), where, notes, below=stream)
                    yield where, buffered(guarded, min(2**20, max(2**13, member.size)))
                    while guarded.pull(2**20):  # to the member's end, so that what follows is a header
                        pass
                    num_to_skip = 0
                source.num_allowed = num_to_skip + MAX_HEADER_BYTES
            source.num_allowed = None
            while rest := archive.fileobj.read(2**20):
                if rest.strip(b"\0"):
                    notes.add("archive goes on behind its end; left out", name)
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


class _TarMember:
    """The content of one member. Unlike tarfile's reader, it does not lose what stands before the end of a cut-off archive."""

    def __init__(self, stream: Any, member: tarfile.TarInfo) -> None:
        self.stream, self.position, self.end = stream, member.offset_data, member.offset_data + member.size

    def read(self, size: int) -> bytes:
        self.stream.seek(self.position)
        data: bytes = self.stream.read(min(size, self.end - self.position))
        self.position += len(data)
        if not data and self.position < self.end:
            raise tarfile.ReadError("unexpected end of data")
        return data


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
) -> Iterator[tuple[str, io.BufferedReader]]:
    """The regular files of a zip archive, one after the other; nothing is written to disk.

    `file` may be a copy of the stream `below`.
    """
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
    with archive:
        for member in archive.infolist():
            where = f"{name}:{member.filename}"
            if member.is_dir():
                continue
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                notes.add("archive member is a link, device or sparse file; left out", where)
            elif not is_safe(member.filename):
                notes.add("archive member has an unsafe name; left out", where)
            elif member.flag_bits & 1:
                notes.add("archive member is encrypted; left out", where)
            else:
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


def _members_without_directory(
    file: Any, name: str, notes: Notes, allowance: Allowance
) -> Iterator[tuple[str, io.BufferedReader]]:
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
        if member.endswith("/"):
            continue
        if not is_safe(member):
            notes.add("archive member has an unsafe name; left out", where)
        elif flags & 1:
            notes.add("archive member is encrypted; left out", where)
        elif method != zipfile.ZIP_DEFLATED and (method != zipfile.ZIP_STORED or is_open):
            notes.add("archive member cannot be read without the archive's directory; left out", where)
        else:
            content = _ZipMember(file, start, None if is_open else size, method, None if flags & 8 else checksum)
            stream = Decompressed(content, where, notes, allowance, content.num_bytes_in, 2**14)
            yield where, buffered(stream)
            if is_open:
                while stream.pull(2**20):  # the next one begins where this one ends
                    pass
                position = content.position


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


class _ZipMember:
    """The content of one member, read from its place in the archive; a deflated one marks its end."""

    def __init__(self, file: Any, start: int, size: int | None, method: int, checksum: int | None) -> None:
        self.file, self.start, self.position = file, start, start
        self.end = None if size is None else start + size
        self.checksum, self.checksum_so_far, self.is_over = checksum, 0, False
        self.deflated = zlib.decompressobj(-15) if method == zipfile.ZIP_DEFLATED else None
        self.waiting = b""

    def num_bytes_in(self) -> int:
        return self.position - self.start

    def read1(self, size: int) -> bytes:
        data = b""
        while not data and not self.is_over:
            chunk = self.waiting or self._chunk()
            if self.deflated is None:
                data, self.waiting, self.is_over = chunk[:size], chunk[size:], not chunk
            else:
                data = self.deflated.decompress(chunk, size)
                self.waiting = self.deflated.unconsumed_tail
                self.is_over = self.deflated.eof
                if not chunk and not data and not self.is_over:
                    raise EOFError
        if self.is_over and self.deflated is not None:
            self.position -= len(self.deflated.unused_data)
            self.deflated = None
        self.checksum_so_far = zlib.crc32(data, self.checksum_so_far)
        if not data and self.checksum not in (None, self.checksum_so_far):
            raise zipfile.BadZipFile("wrong checksum")
        return data

    def _chunk(self) -> bytes:
        num_left = 2**14 if self.end is None else min(2**14, self.end - self.position)
        self.file.seek(self.position)
        chunk: bytes = self.file.read(num_left)
        self.position += len(chunk)
        if num_left and not chunk:
            raise EOFError
        return chunk


class _Checked:
    """A member of a zip archive whose checksum is compared after its last byte, as gzip does."""

    def __init__(self, content: IO[bytes], checksum: int) -> None:
        self.content, self.checksum, self.checksum_so_far = content, checksum, 0

    def read1(self, size: int) -> bytes:
        data: bytes = self.content.read1(size)  # type: ignore[attr-defined]
        self.checksum_so_far = zlib.crc32(data, self.checksum_so_far)
        if not data and self.checksum_so_far != self.checksum:
            raise zipfile.BadZipFile("wrong checksum")
        return data


def is_safe(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and name[1:3] not in (":\\", ":/")

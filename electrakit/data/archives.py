"""A tar or zip archive in, its files out as streams, one after the other: nothing is written to disk, nothing is trusted."""

import functools
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, Any

from electrakit.data.files import DAMAGE, Allowance, Decompressed, Guarded, Notes, buffered, in_short
from electrakit.errors import UserError

MAX_HEADER_BYTES = 2**20  # of one member of a tar archive: names, dates, owners


def tar_members(stream: io.BufferedReader, name: str, notes: Notes) -> Iterator[tuple[str, io.BufferedReader]]:
    """The regular files of a tar stream, one after the other; nothing is written to disk."""
    source = _WithShortHeaders(stream)
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
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
                elif (content := archive.extractfile(member)) is not None:
                    guarded = Guarded(content, where, notes)
                    yield where, buffered(guarded, min(2**20, max(2**13, member.size)))
                    while guarded.pull(2**20):  # to the member's end, so that what follows is a header
                        pass
                    num_to_skip = 0
                source.num_allowed = num_to_skip + MAX_HEADER_BYTES
    except UserError:
        raise
    except DAMAGE as error:
        what = f"damaged archive ({type(error).__name__}); what came before is kept"
        notes.add(what, f"{name}: {in_short(error)}")


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


def zip_members(file: Any, name: str, notes: Notes, allowance: Allowance) -> Iterator[tuple[str, io.BufferedReader]]:
    """The regular files of a zip archive, one after the other; nothing is written to disk."""
    try:
        archive = zipfile.ZipFile(file)
    except UserError:
        raise
    except (*DAMAGE, NotImplementedError) as error:
        notes.add(f"damaged archive ({type(error).__name__}); left out", f"{name}: {in_short(error)}")
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
                    what = f"damaged archive member ({type(error).__name__}); left out"
                    notes.add(what, f"{where}: {in_short(error)}")
                    continue
                # a read that meets damage gives nothing, so they are small;
                # but for deflate, zipfile decompresses all that it has read in one go
                max_read = 2**14 if member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 4096
                num_bytes_in = functools.partial(int, member.compress_size)
                with content:
                    checked = _Checked(content, checksum)
                    yield where, buffered(Decompressed(checked, where, notes, allowance, num_bytes_in, max_read))


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

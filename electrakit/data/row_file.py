"""Row numbers in, bytes out: a shard file that stays open and is read with pread, and what changed it since.

A mapped file would end the process with SIGBUS where another program cut it short.
"""

import contextlib
import os
import resource
import weakref
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_file
from electrakit.data.manifest import PREPARE_AGAIN, ShardFile

OTHER_FILES = 256  # that a process may have open besides its shards


class RowFile:
    """The rows of one shard file."""

    def __init__(self, path: Path, file: ShardFile, row_bytes: int) -> None:
        self.path, self.file, self.row_bytes = path, file, row_bytes
        try:
            self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        weakref.finalize(self, os.close, self.handle)
        self.stamp = self.read_stamp()

    def rows(self, first: int, num_rows: int = 1) -> bytes:
        """That many rows from `first` on, as stored."""
        start, size = first * self.row_bytes, num_rows * self.row_bytes
        content = self.read(start, size)
        while len(content) < size:  # a signal, or a limit of the system, may end a read early
            more = self.read(start + len(content), size - len(content))
            if not more:
                raise UserError(f"{self.path} was cut off while it was read: {PREPARE_AGAIN}")
            content += more
        return content

    def read(self, start: int, size: int) -> bytes:
        try:
            return os.pread(self.handle, size, start)
        except OSError as error:
            raise UserError(
                f"cannot read {self.path}: {error.strerror}; start the same command again to resume"
            ) from None

    def read_stamp(self) -> tuple[int, int, int]:
        """While these are the same, so is the content. The last one cannot be set back, as `cp -p` does with the one before it."""
        about = os.fstat(self.handle)
        return about.st_size, about.st_mtime_ns, about.st_ctime_ns

    def find_change(self) -> str | None:
        """What another program has changed in the open file since it was opened; None if the bytes are those of the manifest."""
        stamp = self.read_stamp()
        if stamp == self.stamp:
            return None
        if stamp[0] != self.stamp[0]:
            return f"{self.path} has {stamp[0]:,} bytes instead of {self.stamp[0]:,}"
        if hash_file(Path(f"/dev/fd/{self.handle}")) != self.file.xxh3_128:
            return f"{self.path} has other content than its manifest says"
        self.stamp = stamp
        return None


def allow_open_files(num_files: int) -> None:
    """Raise this process' own limit of open files where a corpus of many shards needs it, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_files + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))

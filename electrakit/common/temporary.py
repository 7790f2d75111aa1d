"""A name in, a file to write to out: what is there under that name stays, unless nothing is lost with it."""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from electrakit.common.lock import NO_FLOCK


@contextlib.contextmanager
def temporary_file(wanted: Path, content: bytes) -> Iterator[Path]:
    """A file of that name, or of the next that is free, which `content` may be written to. Until the end of the block no other writer
    gets it.

    One that a kill left has the first bytes of the content that was written then. If these are the first of `content` too, it is used
    again. Any other may be the user's.
    """
    for number in itertools.count():
        path = wanted.with_name(f"{wanted.name}{number or ''}")
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
        with contextlib.ExitStack() as held:
            try:
                is_free = is_beginning(path, content) and lock(held.enter_context(path.open("r+b")), path)
            except FileNotFoundError:  # another writer has just renamed it
                is_free = False
            if is_free:
                yield path
                return


def lock(file: IO[bytes], path: Path) -> bool:
    """Whether no other writer has the file, and it still has this name. A kill ends the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def is_beginning(path: Path, content: bytes) -> bool:
    """Whether a file has the first bytes of this content, and no others."""
    is_file = path.is_file() and not path.is_symlink()
    return is_file and path.stat().st_size <= len(content) and content.startswith(path.read_bytes())

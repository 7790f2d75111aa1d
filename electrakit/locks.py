"""A folder in, the assurance out that no other process writes it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from electrakit.errors import UserError


@contextlib.contextmanager
def only_writer(out: Path, flag: str = "--out") -> Iterator[None]:
    """One process writes a folder; the lock goes with the process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / ".lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if not is_ours:  # or it was, and has just been removed with its folder
            raise UserError(f"another process is writing {out}; wait for it, or name another {flag}")
        yield

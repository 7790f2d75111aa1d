"""A folder in, the assurance out that no other process writes it."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from electrakit.errors import UserError


@contextlib.contextmanager
def only_writer(out: Path, flag: str = "--out") -> Iterator[None]:
    """One process writes a folder; the lock goes with the process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing {out}; wait for it, or name another {flag}") from None
        yield

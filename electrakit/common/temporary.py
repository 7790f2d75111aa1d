"""A name in, a file to write to out: what is there under that name stays, unless nothing is lost with it."""

import itertools
from pathlib import Path


def temporary_file(wanted: Path, content: bytes) -> Path:
    """A file of that name, or of the next that is free, which `content` may be written to.

    One that a kill left has the first bytes of the content that was written then. If these are the first of `content` too, it is used
    again. Any other may be the user's.
    """
    for number in itertools.count():
        path = wanted.with_name(f"{wanted.name}{number or ''}")
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            if not is_beginning(path, content):
                continue
        return path
    raise AssertionError("numbers do not end")


def is_beginning(path: Path, content: bytes) -> bool:
    """Whether a file has the first bytes of this content, and no others."""
    is_file = path.is_file() and not path.is_symlink()
    return is_file and path.stat().st_size <= len(content) and content.startswith(path.read_bytes())

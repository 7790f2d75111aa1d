"""Hashes of files and texts: manifests store them, and results are recognised by them."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import xxhash

from electrakit.common.errors import UserError


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # streamed: memory stays flat


def hash_text(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def hash_files(paths: Iterable[Path]) -> str:
    """One hash of the content of several files, whatever their names. An unchanged file is read only once."""
    hashes = []
    for path in paths:
        try:
            state = path.stat()
            hashes.append(_cached_hash(path.resolve(), state.st_size, state.st_mtime_ns, state.st_ino))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
    return hash_text(" ".join(hashes))


@lru_cache(maxsize=1024)
def _cached_hash(path: Path, *state: int) -> str:
    return hash_file(path)

"""A file in, the hash of its content out: what manifests hold, and what results are known by."""

import hashlib
from pathlib import Path

import xxhash


def hash_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()  # streamed: memory stays flat


def hash_of_text(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())

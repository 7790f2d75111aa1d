"""Results as strict JSON, and fingerprints of files."""

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from electrakit.errors import UserError
from electrakit.hashes import hash_of_file, hash_of_text
from electrakit.whole import write_whole


def write_json(path: Path, content: Any) -> None:
    """Strict JSON: what is not a number is null."""
    write_whole(path, (json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def fingerprint(paths: Iterable[Path]) -> str:
    """A hash of the content of files, whatever they are called. One that has not changed since is not read again."""
    hashes = []
    for path in paths:
        try:
            state = path.stat()
            hashes.append(_hash_of(path.resolve(), state.st_size, state.st_mtime_ns, state.st_ino))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
    return hash_of_text(" ".join(hashes))


@lru_cache(maxsize=1024)
def _hash_of(path: Path, *state: int) -> str:
    return hash_of_file(path)

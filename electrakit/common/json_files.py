"""Writes values as strict JSON, atomically."""

import json
import math
from pathlib import Path
from typing import Any

from electrakit.common.atomic import atomic_write


def write_json(path: Path, content: Any, scratch: Path | None = None, *, ascii_only: bool = False) -> None:
    """NaN and infinities become null. ascii_only: other characters as \\u escapes. scratch: as for `atomic_write`."""
    text = json.dumps(finite(content), indent=1, ensure_ascii=ascii_only, allow_nan=False)
    atomic_write(path, f"{text}\n".encode(), scratch)


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value

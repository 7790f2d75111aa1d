"""Writes values as strict JSON, atomically; reads dataclasses from it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from electrakit.common.atomic import atomic_write

Kind = TypeVar("Kind")


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


def read_fields(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A dataclass of those values that have the type of their field; the others get their defaults."""
    hints = get_type_hints(kind)
    return kind(**{name: values[name] for name in hints if name in values and _has_type(values[name], hints[name])})


def _has_type(value: Any, hint: Any) -> bool:
    if isinstance(hint, UnionType):
        return any(_has_type(value, each) for each in get_args(hint))
    if hint is float:
        return isinstance(value, int | float)
    return hint is Any or isinstance(value, get_origin(hint) or hint)

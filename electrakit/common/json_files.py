"""Writes values as strict JSON, atomically; reads JSON and YAML."""

import json
import math
import re
from pathlib import Path
from typing import Any

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, one_line


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


def read_file(path: Path) -> Any:
    """The content of a JSON or YAML file."""
    kind, parse = ("YAML", _parse_yaml) if path.suffix in (".yaml", ".yml") else ("JSON", json.loads)
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not {kind}: {one_line(error)}") from None


def _parse_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML 1.2's numbers: PyYAML, which is at 1.1, takes 1e-3 for a string."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )
    try:
        # Through JSON: names become strings, whatever YAML made of them.
        return json.loads(json.dumps(yaml.load(text, Loader), default=str))
    except yaml.YAMLError as error:
        raise ValueError(error) from None

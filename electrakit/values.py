"""Plain values in, frozen dataclasses out: every value is checked against the annotation of its field."""

import difflib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from electrakit.errors import UserError


def change_fields(config: Any, changes: Mapping[str, Any], where: str = "") -> Any:
    """The dataclass with some of its fields changed; those of a field that is a dataclass too, by a mapping.

    `where` is what stands before their names in an error, such as `optim.`.
    """
    hints = _hints_for(type(config), changes, where)
    values = {}
    for name, value in changes.items():
        old = getattr(config, name)
        if is_dataclass(old) and isinstance(value, Mapping):
            values[name] = change_fields(old, value, f"{where}{name}.")
        else:
            values[name] = read_value(hints[name], value, f"{where}{name}")
    return _make(lambda: replace(config, **values), where)


def read_value(hint: Any, value: Any, where: str = "") -> Any:
    """The value as its annotation wants it, or an error that names the field, which is `where`."""
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if isinstance(value, str) and value.lower() == "none" and kinds[0] not in (str, Path):
            raise UserError(f"{where} is {value!r}; to have none, write {where.split('.')[-1]}=None, not a string")
        return None if value is None else read_value(kinds[0], value, where)
    if is_dataclass(hint) and isinstance(hint, type):
        return _read_dataclass(hint, value, where)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UserError(f"{where} is {value!r}; choose one of {', '.join(get_args(hint))}")
        return value
    if get_origin(hint) is tuple:
        kinds = list(get_args(hint))
        if kinds[-1] is Ellipsis:
            if not isinstance(value, list | tuple):
                raise UserError(f"{where} is {value!r}; it must be a list, such as [{value!r}]")
            return tuple(read_value(kinds[0], one, where) for one in value)
        if not isinstance(value, list | tuple) or len(value) != len(kinds):
            raise UserError(f"{where} is {value!r}; it must be {len(kinds)} numbers")
        return tuple(read_value(kind, one, where) for kind, one in zip(kinds, value, strict=True))
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    if hint in (bool, int, str) and type(value) is hint:
        return value
    wanted = {str: "a string", Path: "a path", float: "a number", bool: "true or false", int: "a whole number"}[hint]
    raise UserError(f"{where} is {value!r}; it must be {wanted}")


def _read_dataclass(cls: type, value: Any, where: str) -> Any:
    if isinstance(value, cls):
        return value
    prefix = f"{where}." if where else ""
    if not isinstance(value, Mapping):
        raise UserError(f"{where or 'the config'} is {value!r}; it must be an object with {', '.join(_names(cls))}")
    hints = _hints_for(cls, value, prefix)
    if missing := [name for name in hints if name not in value]:
        raise UserError(f"{prefix}{missing[0]} is missing; add it, or start from a preset")
    values = {name: read_value(hint, value[name], f"{prefix}{name}") for name, hint in hints.items()}
    return _make(lambda: cls(**values), prefix)


def _hints_for(cls: type, names: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    for name in names:
        if name not in _names(cls):
            close = difflib.get_close_matches(name, _names(cls), n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"there are {', '.join(_names(cls))}"
            raise UserError(f"unknown setting {prefix}{name}; {hint}")
    return get_type_hints(cls)


def _make(construct: Any, prefix: str) -> Any:
    """Networks do not know which of the two they are: their errors are told apart here."""
    try:
        return construct()
    except UserError as error:
        is_network = prefix.startswith(("generator.", "discriminator."))
        raise UserError(f"{prefix[:-1]}: {error}" if is_network else str(error)) from None


def _names(cls: type) -> list[str]:
    return [entry.name for entry in fields(cls)]

"""The base class of all settings: frozen dataclasses whose values are checked against the annotations of their fields."""

import contextlib
import dataclasses
import difflib
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from sys import float_info
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from tyro.conf import Positional

from electrakit.common.errors import UserError, prefix_errors
from electrakit.common.json_files import read_file

Kind = TypeVar("Kind")

# Of a class. To find them takes longer than to check all values.
hints_of: Callable[..., dict[str, Any]] = functools.cache(get_type_hints)


def may_change(default: Any = MISSING) -> Any:
    """A field that changes no result, only when, where or how fast it is made: a started run may be resumed with another value."""
    return dataclasses.field(default=default, metadata={"may_change": True})


def one_or_more(default: Any = MISSING) -> Any:
    """A field with a tuple that may also be given as a single string or path."""
    return dataclasses.field(default=default, metadata={"one_or_more": True})


def with_aliases(default: Any, **aliases: str) -> Any:
    """A field some of whose values have other names, too."""
    return dataclasses.field(default=default, metadata={"aliases": aliases})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every value is converted and checked when an object is made: a UserError names the setting, its value and what it must be.

    A string or path-like becomes a Path, a list a tuple, a mapping the settings of a part: `PretrainConfig(optim={"lr": 1e-3})`.
    An int stays an int in a float field: fingerprints of results are made from their JSON.
    """

    def __post_init__(self) -> None:
        for name, value in self.read_values(vars(self)).items():
            object.__setattr__(self, name, value)
        self.check()

    def check(self) -> None:
        """Rules that annotations cannot express. Messages begin with the setting's name: that of a part is put in front of it."""

    def changed(self, **changes: Any) -> Self:
        """These settings with some changes; those of a part as a mapping."""
        check_names(type(self), changes)
        for name, value in changes.items():
            if isinstance(value, Mapping) and isinstance(old := getattr(self, name), Settings):
                with prefix_errors(f"{name}."):
                    changes[name] = old.changed(**value)
        return replace(self, **changes)

    @classmethod
    def read_values(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by name, converted to what the annotations say; a UserError if one does not fit. No rule is checked."""
        check_names(cls, values)
        hints = hints_of(cls)
        return {
            entry.name: cls._read(entry, hints[entry.name], values[entry.name])
            for entry in fields(cls)
            if entry.name in values
        }

    @classmethod
    def _read(cls, entry: dataclasses.Field, hint: Any, value: Any) -> Any:
        if isinstance(value, Mapping) and (part := _part_of(hint)):
            default = entry.default_factory
            with prefix_errors(f"{entry.name}."):
                value = part.from_json(value) if default is MISSING else default().changed(**value)
        if isinstance(value, str):
            value = entry.metadata.get("aliases", {}).get(value, value)
        if entry.metadata.get("one_or_more") and isinstance(value, str | os.PathLike):
            value = (value,)
        try:
            return convert_value(hint, value)
        except ValueError:
            message = f"{cls.name_of(entry.name)} must be {describe_type(hint)}, got {value!r}"
        if get_origin(hint) is tuple and isinstance(value, str | os.PathLike):
            message += f"; write [{os.fspath(value)!r}]"
        if isinstance(value, str) and value.lower() == "none" and NoneType in get_args(hint):
            message += f"; to have none, write {entry.name}=None, not a string"
        raise UserError(message)

    # Names

    @classmethod
    def name_of(cls, name: str) -> str:
        """The setting as messages name it."""
        return name

    def values(self, *names: str) -> dict[str, Any]:
        """Those settings that are not None, by the name in messages."""
        return {self.name_of(name): value for name in names if (value := getattr(self, name)) is not None}

    @classmethod
    def changeable(cls) -> set[str]:
        """The names of the fields that change no result."""
        return {entry.name for entry in fields(cls) if entry.metadata.get("may_change")}

    def identity(self) -> dict[str, Any]:
        """The settings that decide the result, as JSON."""
        return {name: value for name, value in self.to_json().items() if name not in self.changeable()}

    # JSON and files

    def to_json(self) -> dict[str, Any]:
        """Plain values only, as they stand in config.json."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=os.fspath))

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """What `to_json` gave. A missing setting has its default."""
        if not isinstance(values, Mapping):
            raise UserError(f"the settings must be {describe_type(cls)}, got {values!r}")
        check_names(cls, values)
        required = [entry.name for entry in fields(cls) if entry.default is entry.default_factory is MISSING]
        if missing := [name for name in required if name not in values]:
            raise UserError(f"{missing[0]} is missing; add it")
        return cls(**values)

    @classmethod
    def known_values(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """What this version knows of the JSON of another version."""
        hints = {name: hint for name, hint in hints_of(cls).items() if name in values}
        return {
            name: part.known_values(values[name])
            if (part := _part_of(hint)) and isinstance(values[name], Mapping)
            else values[name]
            for name, hint in hints.items()
        }

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **changes: Any) -> Self:
        """The settings in a JSON or YAML file, such as the config.json of a run, with changes by name."""
        values = cls.values_in(path)
        for name, change in changes.items():
            is_part = isinstance(change, Mapping) and isinstance(values.get(name), Mapping)
            values[name] = {**values[name], **change} if is_part else change
        with prefix_errors(f"{path}: "):
            return cls.from_json(values)

    @classmethod
    def values_in(cls, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The settings in a file, by name; not checked yet."""
        content = cls.unwrap(read_file(Path(path)), Path(path))
        if not isinstance(content, dict):
            raise UserError(f"{path}: the settings must be {describe_type(cls)}, got {content!r}")
        return content

    @classmethod
    def unwrap(cls, content: Any, path: Path) -> Any:
        """The settings in the content of a file. Subclasses override it if their files hold more than settings."""
        return content


@dataclass(frozen=True, kw_only=True)
class VerbSettings(Settings):
    """The settings of a verb of the command line: messages name them as flags."""

    @classmethod
    def name_of(cls, name: str) -> str:
        hint = hints_of(cls, include_extras=True)[name]
        is_positional = Positional in getattr(hint, "__metadata__", ())
        return name if is_positional else f"--{name.replace('_', '-')}"


# Rules


def check_values(values: Mapping[str, Any], is_good: Callable[[Any], bool], rule: str, way_out: str = "") -> None:
    """Refuse the first value that breaks a rule."""
    for name, value in values.items():
        if not is_good(value):
            raise UserError(f"{name} must be {rule}, got {value}{way_out and f'; {way_out}'}")


def check_at_least(least: float, values: Mapping[str, Any], way_out: str = "") -> None:
    check_values(values, lambda value: value >= least, f"{least} or more", way_out)


def check_positive(values: Mapping[str, Any], way_out: str = "") -> None:
    check_values(values, lambda value: value > 0, "above 0", way_out)


def check_rates(values: Mapping[str, Any]) -> None:
    check_values(values, lambda value: 0 <= value <= 1, "a rate from 0 to 1")


def check_below_one(values: Mapping[str, Any]) -> None:
    check_values(values, lambda value: 0 <= value < 1, "from 0 to below 1")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def check_names(cls: type[Settings], values: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse the name of a setting that there is not, also in a part, with the one that was probably meant."""
    known, hints = [entry.name for entry in fields(cls)], hints_of(cls)
    for name, value in values.items():
        if name not in known:
            meant = closest(str(name), known)
            hint = f"did you mean {prefix}{meant}?" if meant else f"there are {', '.join(known)}"
            raise UserError(f"{prefix}{name} is an unknown setting; {hint}")
        if isinstance(value, Mapping) and (part := _part_of(hints[name])):
            check_names(part, value, f"{prefix}{name}.")


# Values


def convert_value(hint: Any, value: Any) -> Any:
    """The value as an annotation wants it; a ValueError if it does not fit."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for kind in kinds:
            with contextlib.suppress(ValueError):
                return convert_value(kind, value)
    elif origin is Literal and isinstance(value, str) and value in kinds:
        return value
    elif origin is tuple and isinstance(value, Iterable) and not isinstance(value, str | os.PathLike | Mapping):
        values = tuple(value)
        each = kinds[:1] * len(values) if kinds[-1] is Ellipsis else kinds
        return tuple(convert_value(kind, one) for kind, one in zip(each, values, strict=True))
    elif hint is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    elif hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    elif isinstance(value, bool):
        if hint is bool:
            return value
    elif hint is float:
        if isinstance(value, int | float) and abs(value) <= float_info.max:
            return value
    elif (origin in (dict, list) or isinstance(hint, type)) and isinstance(value, origin or hint):
        return value
    raise ValueError


def read_fields(kind: type[Kind], values: Mapping[str, Any], *, strict: bool = False) -> Kind:
    """A dataclass of the values that have the names of its fields; the others get their defaults: an older version wrote fewer.

    So do values of a wrong type, or with `strict` they are a UserError.
    """
    hints, fitting = hints_of(kind), {}
    for name in hints.keys() & values.keys():
        try:
            fitting[name] = convert_value(hints[name], values[name])
        except ValueError:
            if strict:
                raise UserError(f"{name} is {values[name]!r}, which this version cannot use") from None
    return kind(**fitting)


def describe_type(hint: Any) -> str:
    """What values an annotation allows, for messages."""
    origin, kinds = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, kinds))
    if origin is Literal:
        return f"one of {', '.join(kinds)}"
    if origin is tuple and kinds[-1] is not Ellipsis:
        return f"{len(kinds)} numbers"
    if origin is tuple:
        return f"a list of {({str: 'strings', Path: 'paths', int: 'whole numbers'}).get(kinds[0], 'numbers')}"
    if isinstance(hint, type) and issubclass(hint, Settings):
        return f"an object with {', '.join(entry.name for entry in fields(hint))}"
    names = {str: "a string", Path: "a path", float: "a number", bool: "True or False", int: "a whole number"}
    return names.get(hint, "None")


def _part_of(hint: Any) -> type[Settings] | None:
    """The class of a field that holds settings itself."""
    kinds = (hint, *get_args(hint))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)

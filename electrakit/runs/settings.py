"""Reads and writes config.json of a run: its settings, the shards that it was started with, and what may differ on resume."""

import json
import re
from collections import ChainMap
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_text
from electrakit.common.json_files import write_json
from electrakit.config.base import read_fields
from electrakit.config.objective import ObjectiveConfig
from electrakit.config.pretrain import PretrainConfig
from electrakit.runs import layout


@dataclass(frozen=True)
class DataDescription:
    """What identifies shards, wherever they are."""

    length: int = 0
    """Tokens in a row."""
    vocab_size: int = 0
    special_ids: dict[str, int] = field(default_factory=dict)
    tokenizer: str | None = None
    """Its fingerprint in the shards' manifest."""
    tokenizer_file: str | None = None
    """Hash of tokenizer.json, which may have been replaced since."""
    tokenizer_kind: str | None = None
    """wordpiece, unigram or bpe, for people to read."""
    rows: dict[str, int] = field(default_factory=dict)
    """Of each split."""
    files: dict[str, str] = field(default_factory=dict)
    """Name and hash of each."""


IDENTITY_OF_DATA = [entry.name for entry in fields(DataDescription) if entry.name != "tokenizer_kind"]
FOLLOWS_FROM_TOKENIZER = re.compile(r"(\w+\.)?(vocab_size|pad_token_id|sep_token_id) ")
"""Changes of settings that a run takes from the tokenizer of its shards."""


@dataclass(frozen=True)
class StoredConfig:
    """What config.json says about the previous start."""

    settings: PretrainConfig
    data: DataDescription
    num_processes: int
    known_data: frozenset[str]
    """The fields of `data` that the file has: an older version wrote fewer."""


@dataclass(frozen=True)
class StoredSettings:
    """Single settings of a run of any version, which may not be readable as a whole. None or 0: the file does not say."""

    data: str | None = None
    steps: int | None = None
    budget: str | None = None
    batch_size: int = 0
    length: int = 0
    share: str | None = None
    generator: dict[str, Any] | None = None
    init_discriminator: str | None = None
    init_generator: str | None = None
    # Of the objective. An older version that did not know one of these did what is now the default.
    kind: str = ObjectiveConfig.kind
    mask_prob: float = ObjectiveConfig.mask_prob
    replace_prob: float = ObjectiveConfig.replace_prob
    scheme: str = ObjectiveConfig.scheme
    loss_on: str = ObjectiveConfig.loss_on
    # Of the optimizer.
    warmup_steps: int = 0
    max_grad_norm: float | None = None

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        parts = (part for name in ("objective", "optim") if isinstance(part := settings.get(name), dict))
        return read_fields(cls, dict(ChainMap(settings, *parts)))

    @property
    def is_continued(self) -> bool:
        """Whether it started from the weights of other models."""
        return bool(self.init_discriminator or self.init_generator)


def write_config(path: Path, config: PretrainConfig, data: DataDescription, num_processes: int) -> None:
    content = {"settings": config.to_json(), "data": asdict(data), "processes": num_processes}
    write_json(path / layout.CONFIG_FILE, content, ascii_only=True)


def read_config(path: Path) -> StoredConfig:
    """The config.json of a run. A setting that an older version did not know has its default."""
    try:
        stored = json.loads((path / layout.CONFIG_FILE).read_text(encoding="utf-8"))
        settings = PretrainConfig.from_json(stored["settings"])
        data = read_fields(DataDescription, stored["data"])
        return StoredConfig(settings, data, stored["processes"], frozenset(stored["data"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path / layout.CONFIG_FILE} cannot be used: {error}; name another --run") from None


def readable_settings(stored: dict[str, Any]) -> PretrainConfig | None:
    """The settings of a config.json of any version: what this version does not know is left out. None if they cannot be used."""
    try:
        return PretrainConfig.from_json(PretrainConfig.known_values(stored))
    except (UserError, TypeError, AttributeError):
        return None


def check_fits(path: Path, before: StoredConfig, config: PretrainConfig, data: DataDescription) -> None:
    """Refuse to resume with other settings or other shards, and show the difference."""
    names = [name for name in IDENTITY_OF_DATA if name in before.known_data]
    old, new = ({name: getattr(each, name) for name in names} for each in (before.data, data))
    changes = differences(before.settings.identity(), config.identity())
    if any(old.get(name) != new.get(name) for name in ("tokenizer", "tokenizer_file")):
        # Ids, sizes and rows differ with it: naming them too would say nothing more.
        changes = [
            *other_tokenizer(before.data, data),
            *(one for one in changes if not FOLLOWS_FROM_TOKENIZER.match(one)),
        ]
    else:
        files = [pair.pop("files", {}) for pair in (old, new)]
        changes += [*differences(old, new, "data."), *other_files(*files)]
    if changes:
        raise UserError(
            f"{path} was started with other settings: {', '.join(changes)}; change them back, or name another --run"
        )


def other_tokenizer(before: DataDescription, now: DataDescription) -> list[str]:
    """The change by kind and size; a hash would mean nothing to the reader."""
    old, new = (f"{one.tokenizer_kind or 'one'} with {one.vocab_size:,} tokens" for one in (before, now))
    return [f"tokenizer {old} -> {'another ' if old == new else ''}{new}"]


def other_files(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """The first file of the shards that has another hash, and how many more there are."""
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return [f"other rows in {names[0]}{more}"] if names else []


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} {old} -> {new}")
    return found


def identity_of(path: Path) -> str:
    """A hash that stays the same when a run is resumed or moved."""
    stored = json.loads((path / layout.CONFIG_FILE).read_text(encoding="utf-8"))
    settings = {name: value for name, value in stored["settings"].items() if name not in PretrainConfig.changeable()}
    data = {name: value for name, value in stored["data"].items() if name in IDENTITY_OF_DATA}
    return hash_text(json.dumps([settings, data], sort_keys=True))

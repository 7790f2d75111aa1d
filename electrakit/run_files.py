"""A run folder in, what it says about its training out: settings, where it ran, how far it is, and every line of its log."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electrakit.errors import UserError

Floats = NDArray[np.float64]
Line = dict[str, Any]
"""Of metrics.jsonl: `step`, `split`, and figures by name. One that was no number is None; one that there is not is missing."""


@dataclass(frozen=True)
class RunFiles:
    """What a run has written so far. It may be training at this moment."""

    path: Path
    settings: dict[str, Any]
    """As in config.json: `to_json` of a PretrainConfig, of this version or an older one."""
    data: dict[str, Any]
    """What identifies its shards: length, vocab_size, rows of each split, hashes."""
    environment: dict[str, Any]
    """Command, versions, machine; empty if the file is not there."""
    status: dict[str, Any]
    """step and is_complete, as of the newest start or end; empty if the file is not there."""
    lines: list[Line]
    """Of metrics.jsonl, in the order of their steps; each step once for each split."""
    glue: dict[str, Any] | None = None
    """glue/results.json, if it is there."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def train(self) -> list[Line]:
        """The lines of the log."""
        return [line for line in self.lines if line["split"] == "train"]

    @cached_property
    def valid(self) -> list[Line]:
        """The validations."""
        return [line for line in self.lines if line["split"] == "valid"]

    @property
    def step(self) -> int:
        """The last that anything is known of."""
        return max([line["step"] for line in self.lines] + [int(self.status.get("step") or 0)])

    @property
    def tokens_per_step(self) -> int:
        """Padding included."""
        return int(self.settings.get("batch_size") or 0) * int(self.settings.get("length") or 0)

    @property
    def is_complete(self) -> bool:
        return bool(self.status.get("is_complete"))

    @property
    def base_rate(self) -> str | None:
        """The figure of the log that is known of the judged tokens without looking at them: how many are replaced, or are not.

        None where the discriminator, if there is one, says something else than replaced or not.
        """
        objective = self.settings.get("objective")
        objective = objective if isinstance(objective, dict) else {}
        if (objective.get("kind") or "electra") != "electra":
            return None
        return "sampled_acc" if objective.get("loss_on") == "masked" else "replaced_rate"

    @cached_property
    def shards(self) -> Path | None:
        """Its training data, if it is still where it was."""
        name = self.settings.get("data")
        if not isinstance(name, str):
            return None
        places = [Path(self.environment.get("folder") or ".") / name, Path(name)]
        return next((place for place in places if (place / "manifest.json").exists()), None)

    @cached_property
    def checkpoint(self) -> Path | None:
        """The newest one, not verified."""
        found = [place for place in self.path.glob("checkpoints/step_*") if (place / "manifest.json").exists()]
        return max(found, key=lambda place: place.name, default=None)

    @cached_property
    def progress(self) -> dict[str, Any]:
        """What the newest checkpoint knows: num_skipped, num_returns, best_step, seconds; empty if there is none."""
        return {} if self.checkpoint is None else _read(self.checkpoint / "state.json")


def is_run(path: str | Path) -> bool:
    """Whether `electra pretrain` has begun a run here."""
    stored = _read(Path(path) / "config.json")
    return isinstance(stored.get("settings"), dict) and isinstance(stored.get("data"), dict)


def read_run(path: str | Path) -> RunFiles:
    """Everything but the weights. A file that is being written, or was cut off by a kill, does no harm."""
    path = Path(path)
    if not is_run(path):
        what = "has no config.json of a run" if path.is_dir() else "is no folder"
        raise UserError(f"{path} {what}: name the folder that electra pretrain wrote (its --run)")
    stored = _read(path / "config.json")
    return RunFiles(
        path=path,
        settings=stored["settings"],
        data=stored["data"],
        environment=_read(path / "environment.json"),
        status=_read(path / "status.json"),
        lines=_newest(read_metrics(path / "metrics.jsonl")),
        glue=_read(path / "glue" / "results.json") or None,
    )


def read_metrics(path: Path) -> list[Line]:
    """The whole lines; one that was cut off by a kill is none."""
    lines = []
    with contextlib.suppress(OSError):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(text)
                if isinstance(line, dict) and is_step(line.get("step")) and isinstance(line.get("split"), str):
                    lines.append(line)
    return lines


def is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def column(lines: Sequence[Line], name: str) -> Floats:
    """One figure of all lines; not a number where it is missing."""
    values = [line.get(name) for line in lines]
    if set(map(type, values)) <= {float}:  # as good as always, and quicker
        numbers = np.array(values, dtype=np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.array([number(value) for value in values], dtype=np.float64)


def number(value: Any) -> float:
    """What is no number, or no finite one, is missing: not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # a whole number of hundreds of digits
        return math.nan


def _newest(lines: list[Line]) -> list[Line]:
    """A run that went back wrote steps again: what was written later holds, and what it took back does not."""
    kept: dict[str, list[Line]] = {}
    for line in lines:
        of_split = kept.setdefault(line["split"], [])
        while of_split and of_split[-1]["step"] >= line["step"]:
            of_split.pop()
        of_split.append(line)
    return sorted([line for of_split in kept.values() for line in of_split], key=lambda line: line["step"])


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if it is not there or no whole one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

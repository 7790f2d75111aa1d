"""Reads what a run has written about its training: settings, hardware, progress, and every line of its metrics."""

import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from electrakit.common.errors import UserError, prefix_errors
from electrakit.common.json_files import write_json
from electrakit.common.ownership import WorkFolder
from electrakit.config.base import read_fields
from electrakit.config.corpus import SHARDS_MANIFEST
from electrakit.config.pretrain import PretrainConfig
from electrakit.runs import layout
from electrakit.runs.settings import DataDescription, StoredSettings, readable_settings

Floats = NDArray[np.float64]
MetricsLine = dict[str, Any]
"""A line of metrics.jsonl: `step`, `split`, and metrics by name. One that was not a finite number is None."""


@dataclass
class Progress:
    """What a run knows besides its weights and its optimizer: state.json of a checkpoint."""

    step: int = 0
    """Updates done, skipped ones too."""
    seconds: float = 0.0
    """Wall-clock time, of all starts together."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the metrics since the last line of the log."""
    num_skipped: int = 0
    """Steps without an update: the loss or the gradient was not finite."""
    num_skipped_in_a_row: int = 0
    num_returns: int = 0
    """How often the run returned to a checkpoint, after too many of these."""
    spent_budget: float | None = None
    """Seconds of a time budget that is used up."""
    last_validated: int | None = None
    """Step of the last validation."""
    best_step: int | None = None
    best_loss: float | None = None
    """The lowest loss on the valid split."""
    milestones: list[int] = field(default_factory=list)
    """Steps whose checkpoints are kept for good, whatever the settings of later starts."""


@dataclass(frozen=True)
class Environment:
    """Where and how the newest start was made: environment.json."""

    command: list[str] = field(default_factory=list)
    folder: str | None = None
    """The working directory."""
    commit: str | None = None
    """Of the checkout that the code comes from, if it is one."""
    versions: dict[str, str | None] = field(default_factory=dict)
    machine: str | None = None
    device: str | None = None
    processes: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Status:
    """How far a run was at its newest start or end: status.json."""

    step: int = 0
    is_complete: bool = False


@dataclass(frozen=True)
class PretrainRun(os.PathLike):
    """A run on disk, as `pretrain` leaves it. It can be used as a path."""

    path: Path
    step: int
    is_complete: bool
    """False if it was stopped before its end: the same call resumes it."""

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def checkpoint(self) -> Path:
        """The folder of its last checkpoint, with `discriminator/` and `generator/` inside."""
        return layout.checkpoint_path(self.path, self.step)

    @property
    def best_checkpoint(self) -> Path:
        """The one with the lowest loss on the valid split; without a valid split, the last."""
        best = read_progress(self.checkpoint).best_step
        return self.checkpoint if best is None else layout.checkpoint_path(self.path, best)

    def metrics(self, split: str = "train") -> list[MetricsLine]:
        """The lines of metrics.jsonl: of training ("train"), or of validations ("valid")."""
        return [line for line in read_metrics(self.path) if line["split"] == split]


@dataclass(frozen=True)
class RunFiles:
    """What a run has written so far. It may be training at this moment. A file that is missing gives its defaults."""

    path: Path
    settings: dict[str, Any]
    """As in config.json: `to_json` of a PretrainConfig, of this version or an older one. `config` and `stored` read it."""
    data: DataDescription
    environment: Environment
    status: Status
    lines: list[MetricsLine]
    """In the order of their steps; each step once for each split."""
    glue: dict[str, Any] | None = None
    """glue/results.json, if it is there."""
    measured: dict[str, Any] | None = None
    """measure.json, if it is there."""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def config(self) -> PretrainConfig | None:
        """The settings, as far as this version knows them; None if they cannot be used."""
        return readable_settings(self.settings)

    @cached_property
    def stored(self) -> StoredSettings:
        """Single settings, known even where `config` is None."""
        return StoredSettings.of(self.settings)

    @cached_property
    def train(self) -> list[MetricsLine]:
        return [line for line in self.lines if line["split"] == "train"]

    @cached_property
    def valid(self) -> list[MetricsLine]:
        return [line for line in self.lines if line["split"] == "valid"]

    @property
    def step(self) -> int:
        """The last step that is known of."""
        return max([line["step"] for line in self.lines] + [self.status.step])

    @property
    def tokens_per_step(self) -> int:
        """Padding included."""
        return self.stored.batch_size * self.stored.length

    @property
    def is_complete(self) -> bool:
        return self.status.is_complete

    @property
    def base_rate(self) -> str | None:
        """The metric that is the share of the more frequent label among the scored tokens, or of the other one.

        None where the discriminator, if there is one, does not say replaced or original.
        """
        if self.stored.kind != "electra":
            return None
        return "sampled_acc" if self.stored.loss_on == "masked" else "replaced_rate"

    @cached_property
    def shards(self) -> Path | None:
        """Its training data, if it is still where it was."""
        name = self.stored.data
        if name is None:
            return None
        places = [Path(self.environment.folder or ".") / name, Path(name)]
        return next((place for place in places if (place / SHARDS_MANIFEST).exists()), None)

    @cached_property
    def checkpoint(self) -> Path | None:
        """The newest one, not verified."""
        return layout.newest_checkpoint(self.path)

    @cached_property
    def progress(self) -> Progress:
        """As the newest checkpoint has it; the beginning if there is none."""
        return (
            Progress()
            if self.checkpoint is None
            else read_fields(Progress, _read(self.checkpoint / layout.PROGRESS_FILE))
        )


def run_folder(path: Path, uses_wandb: bool = False) -> WorkFolder:
    """What `electra pretrain` writes. measure.json is recognised by its content, glue/ is a folder of its own."""
    files = (layout.CONFIG_FILE, layout.ENVIRONMENT_FILE, layout.STATUS_FILE, layout.METRICS_FILE)
    of_wandb = (layout.WANDB_ID, layout.WANDB) if uses_wandb else ()
    names = (*files, layout.CHECKPOINTS, layout.TENSORBOARD, *of_wandb)
    return WorkFolder(path, "run", names, flag="--run", is_older=is_run)


def is_run(path: str | Path) -> bool:
    """Whether `electra pretrain` has begun a run here."""
    stored = _read(Path(path) / layout.CONFIG_FILE)
    return isinstance(stored.get("settings"), dict) and isinstance(stored.get("data"), dict)


def read_run(path: str | Path) -> RunFiles:
    """Everything but the weights. A file that is being written, or was cut off by a kill, does no harm."""
    path = Path(path)
    if not is_run(path):
        what = f"has no {layout.CONFIG_FILE} of a run" if path.is_dir() else "is no folder"
        raise UserError(f"{path} {what}: name the folder that electra pretrain wrote (its --run)")
    stored = _read(path / layout.CONFIG_FILE)
    return RunFiles(
        path=path,
        settings=stored["settings"],
        data=read_fields(DataDescription, stored["data"]),
        environment=read_fields(Environment, _read(path / layout.ENVIRONMENT_FILE)),
        status=read_fields(Status, _read(path / layout.STATUS_FILE)),
        lines=_newest(read_metrics(path)),
        glue=_read(path / layout.GLUE_RESULTS) or None,
        measured=_read(path / layout.MEASURE_FILE) or None,
    )


def read_progress(checkpoint: Path) -> Progress:
    """Of a complete checkpoint."""
    path = checkpoint / layout.PROGRESS_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"{type(content).__name__}, not an object")
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not what a checkpoint has there ({error}); remove {checkpoint}, and the checkpoint before it is used"
        ) from None
    with prefix_errors(f"{path}: "):
        return read_fields(Progress, content, strict=True)


def write_environment(run: Path, environment: Environment) -> None:
    run_folder(run).own(layout.ENVIRONMENT_FILE)
    write_json(run / layout.ENVIRONMENT_FILE, asdict(environment), ascii_only=True)


def write_status(run: Path, status: Status) -> None:
    """At each start and at its end: for programs that started the run and have no exit code to look at."""
    run_folder(run).write(layout.STATUS_FILE, asdict(status))


def read_metrics(run: Path) -> list[MetricsLine]:
    """The lines of metrics.jsonl; one that was cut off by a kill is left out."""
    lines = []
    with contextlib.suppress(OSError):
        for text in (run / layout.METRICS_FILE).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                line = json.loads(text)
                if isinstance(line, dict) and is_step(line.get("step")) and isinstance(line.get("split"), str):
                    lines.append(line)
    return lines


def is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def column(lines: Sequence[MetricsLine], name: str) -> Floats:
    """One metric of all lines; NaN where it is missing."""
    values = [line.get(name) for line in lines]
    if set(map(type, values)) <= {float}:  # almost always, and quicker
        numbers = np.array(values, dtype=np.float64)
        return np.where(np.isfinite(numbers), numbers, np.nan)
    return np.array([number(value) for value in values], dtype=np.float64)


def number(value: Any) -> float:
    """As a float; NaN for anything that is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.nan


def _newest(lines: list[MetricsLine]) -> list[MetricsLine]:
    """A run that returned to a checkpoint wrote some steps again: the later lines replace the earlier ones."""
    kept: dict[str, list[MetricsLine]] = {}
    for line in lines:
        of_split = kept.setdefault(line["split"], [])
        while of_split and of_split[-1]["step"] >= line["step"]:
            of_split.pop()
        of_split.append(line)
    return sorted([line for of_split in kept.values() for line in of_split], key=lambda line: line["step"])


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or not valid."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

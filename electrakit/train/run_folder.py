"""Settings in, a run folder out that one process writes: config.json, environment.json, and the refusal of what does not fit."""

import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from electrakit.data.batches import read_manifest
from electrakit.data.writing import write_json
from electrakit.errors import UserError, mended_by_user
from electrakit.hashes import hash_of_file
from electrakit.locks import only_writer
from electrakit.pretrain_config import PretrainConfig, from_json, to_json
from electrakit.run_files import read_metrics
from electrakit.train.checkpoint import checkpoint_path, read_progress
from electrakit.train.distributed import Team

MAY_CHANGE = {  # what decides when and where things are written, or how fast: not what is learned
    *("run", "data", "steps", "budget", "micro_batch", "compile", "plain", "deterministic", "recompute", "fsdp"),
    *("log_every", "valid_every", "save_every", "keep_last", "keep_at", "on_checkpoint", "wandb"),
}
RELIEF = "raise the limit (ulimit -a) or close other programs"  # where there are too many files or processes
PACKAGES = ("electrakit", "torch", "transformers", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class Run(os.PathLike):
    """A run on disk, as `pretrain` leaves it. It can be used as a path."""

    path: Path
    step: int
    is_complete: bool
    """False if it was asked to stop before its end: the same call goes on."""

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def checkpoint(self) -> Path:
        """The folder of its last checkpoint, with `discriminator/` and `generator/` inside."""
        return checkpoint_path(self.path, self.step)

    @property
    def best_checkpoint(self) -> Path:
        """The one with the lowest loss on the valid split; without a valid split, the last."""
        best = read_progress(self.checkpoint).best_step
        return self.checkpoint if best is None else checkpoint_path(self.path, best)

    def metrics(self, split: str = "train") -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: of the log ("train"), or of validations ("valid")."""
        return [line for line in read_metrics(self.path / "metrics.jsonl") if line["split"] == split]


@contextlib.contextmanager
def opened(path: Path, team: Team) -> Iterator[None]:
    """The run folder, ours alone as long as we live."""
    with contextlib.ExitStack() as held:

        def lock() -> None:
            with mended_by_user(path, RELIEF):
                held.enter_context(only_writer(path, "--run"))

        team.first_does(lock)
        yield


@dataclass(frozen=True)
class Stored:
    """What config.json says about the start before."""

    settings: PretrainConfig
    data: dict[str, Any]
    num_processes: int


def read_config(path: Path) -> Stored:
    """Of a run; what an older version did not know has its default."""
    try:
        stored = json.loads((path / "config.json").read_text(encoding="utf-8"))
        settings = from_json(completed(stored["settings"], to_json(PretrainConfig())))
        return Stored(settings, stored["data"], stored["processes"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path / 'config.json'} cannot be used: {error}; name another --run") from None


def check_fits(path: Path, before: Stored, config: PretrainConfig, data: dict[str, Any]) -> None:
    """Refuse to go on with other settings or other shards, and show the difference."""
    data = {name: value for name, value in data.items() if name in before.data}  # an older version noted less
    changes = [*differences(to_json(before.settings), to_json(config)), *differences(before.data, data, "data.")]
    if changes:
        raise UserError(
            f"{path} was started with other settings: {', '.join(changes)}; change them back, or name another --run"
        )


def completed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """The values, and the defaults of those that are missing, in parts too."""
    both = {name: (value, defaults.get(name)) for name, value in values.items()}
    parts = {
        name: completed(value, default)
        for name, (value, default) in both.items()
        if isinstance(value, dict) and isinstance(default, dict)
    }
    return {**defaults, **values, **parts}


def write_config(path: Path, config: PretrainConfig, data: dict[str, Any], num_processes: int) -> None:
    write_json(path / "config.json", {"settings": to_json(config), "data": data, "processes": num_processes})


def differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in [*before, *(name for name in now if name not in before)]:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{prefix}{name}.")
        elif old != new and f"{prefix}{name}" not in MAY_CHANGE:
            found.append(f"{prefix}{name} {old} -> {new}")
    return found


def describe_data(shards: Path) -> dict[str, Any]:
    """What identifies shards, wherever they lie."""
    manifest = read_manifest(shards)
    tokenizer = shards / "tokenizer" / "tokenizer.json"  # it may be another one by now
    return {
        "length": manifest["length"],
        "vocab_size": manifest["vocab_size"],
        "special_ids": manifest["special_ids"],
        "tokenizer": manifest.get("plan", {}).get("tokenizer"),
        "tokenizer_file": hash_of_file(tokenizer) if tokenizer.exists() else None,
        "rows": {name: split["rows"] for name, split in manifest["splits"].items()},
        "files": {file["name"]: file["xxh3_128"] for split in manifest["splits"].values() for file in split["files"]},
    }


def write_environment(path: Path, team: Team) -> None:
    """Where and how the newest start was made."""
    entry = {
        "command": sys.argv,
        "folder": str(Path.cwd()),
        "commit": commit(),
        "versions": {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}},
        "machine": platform.platform(),
        "device": torch.cuda.get_device_name(team.device) if team.device.type == "cuda" else cpu_name(),
        "processes": team.size,
        "threads": torch.get_num_threads(),
    }
    write_json(path / "environment.json", entry)


def commit() -> str | None:
    """Of the checkout that the code comes from, if it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return None


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "cpu"


def write_status(run: Run) -> None:
    """At each start, and at its end: for whoever started the run and has no exit code to look at."""
    write_json(run.path / "status.json", {"step": run.step, "is_complete": run.is_complete})

"""Weights, optimizer and progress in, a folder out that is whole or not there; and back.

    checkpoints/step_0005000/   model.safetensors, optimizer.safetensors, state.json, discriminator/, generator/, manifest.json

A folder is written under another name, synced and hashed, its manifest last, and then renamed. Safetensors and JSON only: nothing
that is read can run code.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.hashes import hash_of_file
from electrakit.model.adapt import is_transformers
from electrakit.model.encoder import Discriminator, Generator
from electrakit.model.tie import first_names, load_state_once, state_once
from electrakit.model.weights import to_transformers
from electrakit.objective.mlm import MaskedLM
from electrakit.progress import console
from electrakit.train.distributed import Team, fill, whole
from electrakit.train.optim import Optimizer
from electrakit.whole import allow_reading, sync

FORMAT = 1  # of manifest.json
HIDDEN = "."  # folders that are being written or removed
REPLACED = ".replaced"  # those that make way for another of the same step


@dataclass
class Progress:
    """What a run knows besides its weights and its optimizer."""

    step: int = 0
    """Updates done, skipped ones too."""
    seconds: float = 0.0
    """Wall-clock time, of all starts together."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the figures since the last line of the log."""
    num_skipped: int = 0
    """Steps without an update: the loss or the gradient was not finite."""
    num_skipped_in_a_row: int = 0
    num_returns: int = 0
    """How often the run went back to a checkpoint, after too many of these."""
    spent_budget: float | None = None
    """Seconds of a time budget that is used up."""
    last_validated: int | None = None
    """Step of the last validation."""
    best_step: int | None = None
    best_loss: float | None = None
    """The lowest loss on the valid split."""
    milestones: list[int] = field(default_factory=list)
    """Steps whose checkpoints are kept for good, whatever the settings of later starts."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path, keep_last: int, milestones: list[int]) -> None:
        self.folder = run / "checkpoints"
        self.keep_last, self.milestones = keep_last, set(milestones)
        self.damaged: set[int] = set()  # as far as `newest` had to look

    def save(
        self, progress: Progress, objective: nn.Module, optimizer: Optimizer, tokenizer: Path | None, team: Team
    ) -> Path:
        """Every process calls this, the first one writes."""
        weights, averages = gathered(state_once(objective), team), gathered(optimizer.state(), team)
        path = self.path(progress.step)
        there = {*progress.milestones, *self.milestones.intersection([*self.steps(), progress.step])}
        progress.milestones = sorted(there)

        def write() -> None:
            with self._whole_or_nothing(path) as folder:
                save_file(weights, folder / "model.safetensors")
                save_file(averages, folder / "optimizer.safetensors")
                (folder / "state.json").write_text(json.dumps(asdict(progress), indent=1) + "\n", encoding="utf-8")
                everywhere = {name: weights[first] for name, first in first_names(objective).items()}
                for name, attribute in parts_of(objective).items():
                    state = without_prefix(everywhere, f"{attribute}.")
                    write_transformers(getattr(objective, attribute), state, folder / name, tokenizer)
            self.damaged.discard(progress.step)
            self.prune(progress)

        team.first_does(write)
        return path

    @contextlib.contextmanager
    def _whole_or_nothing(self, path: Path) -> Iterator[Path]:
        temporary = path.parent / f"{HIDDEN}{path.name}"
        try:
            self.clean()
            temporary.mkdir(parents=True)
            yield temporary
            allow_reading(temporary)
            write_manifest(temporary)
            if path.exists():  # damaged, or from before a last validation
                path.rename(path.parent / f"{HIDDEN}{path.name}{REPLACED}")
            temporary.rename(path)
            sync(path.parent)
            self.clean()
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise UserError(
                f"cannot write the checkpoint {path} ({error}); earlier checkpoints are untouched: make room, then start the "
                "same command again"
            ) from None

    def clean(self) -> None:
        """Remove what a killed process left half written or half removed."""
        self.put_back()
        for leftover in self.folder.glob(f"{HIDDEN}step_*"):
            shutil.rmtree(leftover)

    def put_back(self) -> None:
        """What a kill came to before its replacement was in its place."""
        for aside in self.folder.glob(f"{HIDDEN}step_*{REPLACED}"):
            place = self.folder / aside.name.removeprefix(HIDDEN).removesuffix(REPLACED)
            if not place.exists():
                aside.rename(place)

    def prune(self, progress: Progress) -> None:
        """Keep the newest ones, the milestones and the best; a folder that is going is no checkpoint any more."""
        # later ones are damaged; neither they nor earlier damaged ones are a reason to drop a good one
        steps = [step for step in self.steps() if step <= progress.step]
        good = [step for step in steps if step not in self.damaged]
        kept = {*good[-self.keep_last :], *self.milestones, *progress.milestones, progress.best_step}
        for step in steps:
            if step not in kept:
                going = self.path(step).rename(self.folder / f"{HIDDEN}{self.path(step).name}")
                shutil.rmtree(going)

    def steps(self) -> list[int]:
        """Of all checkpoints, in order."""
        names = [path.name.removeprefix("step_") for path in self.folder.glob("step_*")]
        return sorted(int(name) for name in names if name.isdigit())

    def path(self, step: int) -> Path:
        return checkpoint_path(self.folder.parent, step)

    def newest(self) -> Path | None:
        """The newest one that is whole; damaged ones are named and passed over. None if there are none at all."""
        self.put_back()
        steps = self.steps()
        for step in reversed(steps):
            damage = find_damage(self.path(step))
            if damage is None:
                return self.path(step)
            self.damaged.add(step)
            console.print(
                f"{self.path(step)} is damaged ({damage}); passed over", style="yellow", markup=False, soft_wrap=True
            )
        if steps:
            raise UserError(
                f"all checkpoints in {self.folder} are damaged; remove that folder to start from the beginning"
            )
        return None


def parts_of(objective: nn.Module) -> dict[str, str]:
    """Networks that are written for transformers too, by the name of their folder: the objective's attribute."""
    names = {"discriminator": "discriminator", "generator": "generator"}
    if isinstance(objective, MaskedLM):  # its one network is the one that is kept
        names = {"discriminator": "model"}
    return {
        name: attribute
        for name, attribute in names.items()
        if isinstance(getattr(objective, attribute, None), nn.Module)
    }


def checkpoint_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:07d}"


def gathered(tensors: dict[str, Tensor], team: Team) -> dict[str, Tensor]:
    """Whole and on the CPU, one after the other; every process asks, the first one keeps them."""
    found = {}
    for name, tensor in tensors.items():
        value = whole(tensor).detach()
        if team.is_first:
            found[name] = value.to("cpu", copy=True).contiguous()
    return found


def load(path: Path, objective: nn.Module, optimizer: Optimizer) -> Progress:
    """Read a checkpoint into an objective and an optimizer of the same kind."""
    try:
        load_state_once(objective, load_file(path / "model.safetensors"), fill)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    optimizer.load_state(load_file(path / "optimizer.safetensors"))
    return read_progress(path)


def read_progress(path: Path) -> Progress:
    stored = json.loads((path / "state.json").read_text(encoding="utf-8"))
    known = {entry.name for entry in fields(Progress)}  # an older version has fewer
    return Progress(**{name: value for name, value in stored.items() if name in known})


# --- files -------------------------------------------------------------------------------------------------------------


def write_manifest(folder: Path) -> None:
    """Sync and hash every file; the manifest is the last one."""
    files = {}
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        sync(path)
        files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "xxh3_128": hash_of_file(path)}
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n", encoding="utf-8")
    sync(manifest)
    for path in (*(one for one in folder.rglob("*") if one.is_dir()), folder):
        sync(path)


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] > FORMAT:
            raise UserError(
                f"{folder} has format {manifest['format']}, we read {FORMAT}: update electrakit, or name another --run"
            )
        for name, entry in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"] or hash_of_file(path) != entry["xxh3_128"]:
                return f"{name} is not what was written"
    except FileNotFoundError:
        return "manifest.json is missing"
    except OSError as error:  # the disk or the network: it may well be whole the next time
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}; start the same command again to go on"
        ) from None
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        return "manifest.json cannot be read"
    return None


def without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What belongs to one part, under the part's own names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def write_transformers(network: nn.Module, state: dict[str, Tensor], folder: Path, tokenizer: Path | None) -> None:
    """A folder that `from_pretrained` opens, where transformers has such a network; plain modules are in model.safetensors alone."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    inner = getattr(network, "model", None)
    if isinstance(network, Generator | Discriminator):
        with torch.device("meta"):
            copy = type(network)(network.config)
        copy.load_state_dict({name: state[name] for name in copy.state_dict()}, assign=True)
        to_transformers(copy).save_pretrained(folder)
    elif isinstance(inner, nn.Module) and is_transformers(inner):
        inner.save_pretrained(folder, state_dict=without_prefix(state, "model."))  # type: ignore[operator]
    else:
        return
    if tokenizer is not None:
        shutil.copytree(tokenizer, folder, dirs_exist_ok=True)

"""Writes checkpoints atomically, verifies and loads them, and removes those that are not kept.

A folder is written under a hidden name, hashed and synced, and then renamed; `runs/layout.py` names its files. Safetensors and JSON
only: loading runs no code.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electrakit.common.atomic import put_folder
from electrakit.common.errors import UserError, prefix_errors
from electrakit.common.hashing import hash_file
from electrakit.common.progress import print_message
from electrakit.model.huggingface.families import is_transformers
from electrakit.model.huggingface.weights import to_transformers
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.tie import first_names, load_state_once, state_once
from electrakit.runs import layout
from electrakit.runs.files import Progress, read_progress
from electrakit.train.distributed import ProcessGroup, copy_into, full_tensor
from electrakit.train.optim import RunOptimizer

CHECKPOINT_FORMAT = 1  # of manifest.json
REPLACED_SUFFIX = ".replaced"  # of a folder that another of the same step replaces


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path, keep_last: int, milestones: list[int]) -> None:
        self.run, self.folder = run, run / layout.CHECKPOINTS
        self.keep_last, self.milestones = keep_last, set(milestones)
        self.damaged: set[int] = set()  # found by `newest`

    def save(
        self, progress: Progress, objective: nn.Module, optimizer: RunOptimizer, tokenizer: Path, group: ProcessGroup
    ) -> Path:
        """Every rank calls this, rank 0 writes."""
        weights, averages = gathered(state_once(objective), group), gathered(optimizer.state(), group)
        path = self.path(progress.step)
        there = {*progress.milestones, *self.milestones.intersection([*self.steps(), progress.step])}
        progress.milestones = sorted(there)

        def write() -> None:
            folder = hidden(path)
            try:
                self.clean()
                folder.mkdir(parents=True)
                save_file(weights, folder / layout.WEIGHTS_FILE)
                save_file(averages, folder / layout.OPTIMIZER_FILE)
                (folder / layout.PROGRESS_FILE).write_text(
                    json.dumps(asdict(progress), indent=1) + "\n", encoding="utf-8"
                )
                everywhere = {name: weights[first] for name, first in first_names(objective).items()}
                for name, attribute in parts_of(objective).items():
                    state = without_prefix(everywhere, f"{attribute}.")
                    write_transformers(getattr(objective, attribute), state, folder / name, tokenizer)
                write_manifest(folder)
                # What it replaces is damaged, or from before a last validation.
                put_folder(folder, path, hidden(path, REPLACED_SUFFIX))
                self.clean()
            except (OSError, SafetensorError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise UserError(
                    f"cannot write the checkpoint {path} ({error}); earlier checkpoints are untouched: make room, then start "
                    "the same command again"
                ) from None
            self.damaged.discard(progress.step)
            self.prune(progress)

        group.run_on_main(write)
        return path

    def clean(self) -> None:
        """Remove what a killed process left half written or half removed."""
        self.put_back()
        for leftover in self.folder.glob(f".{layout.STEP}*"):
            shutil.rmtree(leftover)

    def put_back(self) -> None:
        """Restore a folder that was moved aside if a kill came before its replacement was in place."""
        for aside in self.folder.glob(f".{layout.STEP}*{REPLACED_SUFFIX}"):
            place = self.folder / aside.name.removeprefix(".").removesuffix(REPLACED_SUFFIX)
            if not place.exists():
                aside.rename(place)

    def prune(self, progress: Progress) -> None:
        """Remove all but the newest ones, the milestones and the best. Damaged ones do not count as newest."""
        # Checkpoints after the current step are damaged: the run was resumed from before them.
        steps = [step for step in self.steps() if step <= progress.step]
        good = [step for step in steps if step not in self.damaged]
        kept = {*good[-self.keep_last :], *self.milestones, *progress.milestones, progress.best_step}
        for step in steps:
            if step not in kept:
                # Hidden first: a folder that is half removed must not look like a checkpoint.
                shutil.rmtree(self.path(step).rename(hidden(self.path(step))))

    def steps(self) -> list[int]:
        """Of all checkpoints, in order."""
        return layout.checkpoint_steps(self.run)

    def path(self, step: int) -> Path:
        return layout.checkpoint_path(self.run, step)

    def newest(self) -> Path | None:
        """The newest one that is not damaged; damaged ones are reported. None if there is no checkpoint."""
        self.put_back()
        steps = self.steps()
        for step in reversed(steps):
            damage = find_damage(self.path(step))
            if damage is None:
                return self.path(step)
            self.damaged.add(step)
            print_message(f"{self.path(step)} is damaged ({damage}); passed over", "yellow")
        if steps:
            raise UserError(
                f"all checkpoints in {self.folder} are damaged; remove that folder to start from the beginning"
            )
        return None


def hidden(path: Path, suffix: str = "") -> Path:
    """The name of a checkpoint's folder while it is written, removed or replaced."""
    return path.with_name(f".{path.name}{suffix}")


def parts_of(objective: nn.Module) -> dict[str, str]:
    """The networks that are also written for transformers: folder -> attribute of the objective."""
    names: dict[str, str] = getattr(objective, "saved_networks", {name: name for name in layout.NETWORKS})
    return {
        name: attribute
        for name, attribute in names.items()
        if isinstance(getattr(objective, attribute, None), nn.Module)
    }


def gathered(tensors: dict[str, Tensor], group: ProcessGroup) -> dict[str, Tensor]:
    """Full tensors on the CPU of rank 0. Every rank calls this; tensors are gathered one at a time."""
    found = {}
    for name, tensor in tensors.items():
        value = full_tensor(tensor).detach()
        if group.is_main:
            found[name] = value.to("cpu", copy=True).contiguous()
    return found


def load_checkpoint(path: Path, objective: nn.Module, optimizer: RunOptimizer) -> Progress:
    """Read a checkpoint into an objective and an optimizer of the same kind."""
    with prefix_errors(f"{path}: "):
        load_state_once(objective, load_file(path / layout.WEIGHTS_FILE), copy_into)
    optimizer.load_state(load_file(path / layout.OPTIMIZER_FILE))
    return read_progress(path)


# Files


def write_manifest(folder: Path) -> None:
    """Write the sizes and hashes of all files."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "xxh3_128": hash_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / layout.MANIFEST_FILE).write_text(
        json.dumps({"format": CHECKPOINT_FORMAT, "files": files}, indent=1) + "\n", encoding="utf-8"
    )


def find_damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((folder / layout.MANIFEST_FILE).read_text(encoding="utf-8"))
        if manifest["format"] > CHECKPOINT_FORMAT:
            raise UserError(
                f"{folder} has format {manifest['format']}, we read {CHECKPOINT_FORMAT}: update electrakit, or name another --run"
            )
        for name, entry in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != entry["bytes"] or hash_file(path) != entry["xxh3_128"]:
                return f"{name} is not what was written"
    except FileNotFoundError:
        return f"{layout.MANIFEST_FILE} is missing"
    except OSError as error:  # a failing disk or network: the checkpoint itself may be fine
        raise UserError(
            f"cannot read {error.filename}: {error.strerror}; start the same command again to resume"
        ) from None
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{layout.MANIFEST_FILE} cannot be read"
    return None


def without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of one network, by the names inside it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def write_transformers(network: nn.Module, state: dict[str, Tensor], folder: Path, tokenizer: Path) -> None:
    """Write a folder for `from_pretrained`, if transformers has such a network. Other modules are in model.safetensors only."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    inner = getattr(network, "model", None)
    if isinstance(network, Generator | Discriminator):
        with torch.device("meta"):
            copy = type(network)(network.config)
        copy.load_state_dict({name: state[name] for name in copy.state_dict()}, assign=True)
        to_transformers(copy).save_pretrained(folder)
    elif isinstance(inner, nn.Module) and is_transformers(inner):
        inner.save_pretrained(folder, state_dict=without_prefix(state, "model."))
    else:
        return
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)

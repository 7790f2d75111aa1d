"""Writes checkpoints atomically, verifies and loads them, and removes those that are not kept.

A folder is written under a hidden name, hashed and synced, and then renamed; `runs/layout.py` names its files. Safetensors and JSON
only: loading runs no code.
"""

import json
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from electrakit.common.atomic import allow_reading, put_folder
from electrakit.common.errors import UserError, prefix_errors
from electrakit.common.hashing import hash_file
from electrakit.common.move_folder import JOURNAL_SUFFIX, finish_move, move_folder, remove_folder
from electrakit.common.ownership import files_of, set_aside
from electrakit.common.progress import print_message, say_once
from electrakit.model.gdes import with_sums
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
HIDDEN_NAME = re.compile(rf"\.{layout.STEP}[0-9]{{7,}}({re.escape(REPLACED_SUFFIX)})?")
# A file that safetensors is writing, and one that NFS keeps because it was removed while it was open.
PASSING_NAME = re.compile(r"\.tmp[A-Za-z0-9]{6}|\.nfs.*")


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path, keep_last: int, milestones: list[int]) -> None:
        self.run, self.folder = run, run / layout.CHECKPOINTS
        self.keep_last, self.milestones = keep_last, set(milestones)
        self.damaged: set[int] = set()  # found by `newest`

    def save(
        self,
        progress: Progress,
        objective: nn.Module,
        optimizer: RunOptimizer,
        tokenizer: dict[str, bytes],
        group: ProcessGroup,
    ) -> Path:
        """Every rank calls this, rank 0 writes. tokenizer: its files, by name."""
        weights, averages = gathered(state_once(objective), group), gathered(optimizer.state(), group)
        path = self.path(progress.step)
        there = {*progress.milestones, *self.milestones.intersection([*self.steps(), progress.step])}
        progress.milestones = sorted(there)

        def write() -> None:
            folder = hidden(path)
            try:
                self.clean()
                for strange in (folder, hidden(path, REPLACED_SUFFIX)):
                    if os.path.lexists(strange) and not has_only_ours(strange):
                        set_aside(strange)
                folder.mkdir(parents=True, exist_ok=True)
                save_file(weights, folder / layout.WEIGHTS_FILE)
                save_file(averages, folder / layout.OPTIMIZER_FILE)
                (folder / layout.PROGRESS_FILE).write_text(
                    json.dumps(asdict(progress), indent=1) + "\n", encoding="utf-8"
                )
                everywhere = {name: weights[first] for name, first in first_names(objective).items()}
                everywhere = with_sums(everywhere, objective)
                for name, attribute in parts_of(objective).items():
                    state = without_prefix(everywhere, f"{attribute}.")
                    write_transformers(getattr(objective, attribute), state, folder / name, tokenizer)
                allow_reading(folder)
                write_manifest(folder)
                # What it replaces is damaged, or from before a last validation.
                if os.path.lexists(path) and not is_checkpoint(path):
                    set_aside(path)
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
        """Remove what a killed process left half written or half removed. What else is there, and what cannot be removed, stays."""
        self.put_back()
        for leftover in self.folder.glob(f".{layout.STEP}*"):
            if HIDDEN_NAME.fullmatch(leftover.name) and has_only_ours(leftover):
                remove_folder(leftover)  # what a network file system still holds goes at the next save

    def put_back(self) -> None:
        """Restore a folder that was moved aside if a kill came before its replacement was in place."""
        for journal in self.folder.glob(f".{layout.STEP}*{JOURNAL_SUFFIX}"):
            name = journal.name.removesuffix(JOURNAL_SUFFIX)
            finish_move(self.folder / (name if name.endswith(REPLACED_SUFFIX) else name.removeprefix(".")))
        for aside in self.folder.glob(f".{layout.STEP}*{REPLACED_SUFFIX}"):
            if not HIDDEN_NAME.fullmatch(aside.name):
                continue
            place = self.folder / aside.name.removeprefix(".").removesuffix(REPLACED_SUFFIX)
            if not place.exists():
                move_folder(aside, place)

    def prune(self, progress: Progress) -> None:
        """Remove all but the newest ones, the milestones and the best. Damaged ones do not count as newest.

        What is not as we write it, such as a checkpoint with a file of the user's inside, stays; nothing here stops a run.
        """
        # Checkpoints after the current step are damaged: the run was resumed from before them.
        steps = [step for step in self.steps() if step <= progress.step]
        good = [step for step in steps if step not in self.damaged]
        kept = {*good[-self.keep_last :], *self.milestones, *progress.milestones, progress.best_step}
        for path in (self.path(step) for step in steps if step not in kept):
            foreign = files_of_others(path)
            if foreign == []:
                remove_checkpoint(path)
            elif foreign is not None:
                text = f"{path} is kept, as all checkpoints with a file that is not ours: {foreign[0]}; let --on-checkpoint write elsewhere"
                say_once(text, about=f"kept in {self.folder}")

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


def remove_checkpoint(path: Path) -> None:
    """Hidden first, or without its manifest: a folder that is half removed must not look like a checkpoint. Failing does no harm."""
    try:
        try:
            path = path.rename(hidden(path))
        except OSError:  # a folder of a container's image
            (path / layout.MANIFEST_FILE).unlink()
        if remove_folder(path):
            return
        why = "something in it is still open"
    except OSError as error:
        why = str(error.strerror)
    say_once(f"old checkpoints in {path.parent} cannot be removed ({why}); training goes on, and each save tries again")


def hidden(path: Path, suffix: str = "") -> Path:
    """The name of a checkpoint's folder while it is written, removed or replaced."""
    return path.with_name(f".{path.name}{suffix}")


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is one that we wrote, and has nothing else inside."""
    return files_of_others(folder) == []


def files_of_others(folder: Path) -> list[str] | None:
    """What is in a checkpoint and was not written by us; None for a folder that is no checkpoint, or a link to one."""
    try:
        manifest = json.loads((folder / layout.MANIFEST_FILE).read_text(encoding="utf-8"))
        is_ours, known = bool(manifest["format"]), {*manifest["files"], layout.MANIFEST_FILE}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if folder.is_symlink() or not is_ours:
        return None
    return [name for name in files_of(folder) if name not in known]


def has_only_ours(folder: Path) -> bool:
    """Whether a folder that may be half written has only names of a checkpoint."""
    names = {layout.WEIGHTS_FILE, layout.OPTIMIZER_FILE, layout.PROGRESS_FILE, layout.MANIFEST_FILE, *layout.NETWORKS}
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(path.name in names or PASSING_NAME.fullmatch(path.name) for path in folder.iterdir())


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
        load_state_once(objective, read_tensors(path / layout.WEIGHTS_FILE), copy_into)
    optimizer.load_state(read_tensors(path / layout.OPTIMIZER_FILE))
    return read_progress(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint's file, by name."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(
            f"{path} is no safetensors file ({error}); remove {path.parent}, and the checkpoint before it is used"
        ) from None


# Files


def write_manifest(folder: Path) -> None:
    """Write the sizes and hashes of all files."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "xxh3_128": hash_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".nfs")  # removed already, but still open somewhere
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


def write_transformers(network: nn.Module, state: dict[str, Tensor], folder: Path, tokenizer: dict[str, bytes]) -> None:
    """Write a folder for `from_pretrained`, if transformers has such a network. Other modules are in model.safetensors only."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    inner = getattr(network, "model", None)
    if isinstance(network, Generator | Discriminator):
        if network.config.enhanced_mask_decoder:
            return
        with torch.device("meta"):
            copy = type(network)(network.config)
        copy.load_state_dict({name: state[name] for name in copy.state_dict()}, assign=True)
        if isinstance(copy, Discriminator) and isinstance(network, Discriminator):
            copy.gives_energies = network.gives_energies
        to_transformers(copy).save_pretrained(folder)
    elif isinstance(inner, nn.Module) and is_transformers(inner):
        inner.save_pretrained(folder, state_dict=without_prefix(state, "model."))
    else:
        return
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)

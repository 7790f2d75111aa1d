"""Writes a run as a transformers folder: the discriminator, `generator/` beside it, tokenizer, card, and ONNX files if asked for.

What was written is read again from disk, and its logits are compared with those of the trained network. The write is atomic.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from electrakit.common.errors import UserError
from electrakit.common.ownership import (
    MARKER,
    mark_whole,
    read_marker,
    require_apart,
    require_replaceable,
    whole_folder,
)
from electrakit.common.safe_load import weights_fingerprint
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.config.outputs import ExportConfig
from electrakit.data.batches import Batches
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer
from electrakit.export import hub
from electrakit.export import onnx as onnx_files
from electrakit.export.card import LOSSES_PLOT, draw_losses, write_card
from electrakit.export.card_facts import facts_of_network, facts_of_run, read_glue, scores_of_weights
from electrakit.export.networks import load_networks
from electrakit.model.huggingface.inputs import InputsFor
from electrakit.model.huggingface.write_model import compare, write_transformers_model
from electrakit.runs import layout
from electrakit.runs.files import RunFiles, is_run, read_progress, read_run
from electrakit.runs.settings import identity_of, read_config
from electrakit.train.checkpoint import find_damage
from electrakit.train.initial_weights import describe_data

# Rows on which logits are compared.
NUM_ROWS = 8


@dataclass(frozen=True)
class Exported(os.PathLike):
    """What was written. It can be used as a path."""

    path: Path
    step: int
    """Step of the exported checkpoint."""
    differences: dict[str, float]
    """By network, the largest difference between a logit of the trained network and of the one that was read again from disk."""
    files: dict[str, int]
    """All files and their sizes in bytes."""
    onnx: list[onnx_files.OnnxMeasurement] = field(default_factory=list)
    """How the ONNX files compare with torch."""
    notes: list[str] = field(default_factory=list)
    """Notes about the GLUE scores that were found."""
    url: str | None = None
    """Address on the Hub, if it was uploaded."""

    def __fspath__(self) -> str:
        return str(self.path)


def export(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str | int = "last",
    glue: str | os.PathLike[str] | None = None,
    licence: str | None = None,
    onnx: bool = False,
    push: str | None = None,
    private: bool = False,
    dry_run: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Write a run's model for transformers: `export(run, "hf/mine")`; ExportConfig explains the settings."""
    config = ExportConfig(**locals() | {"checkpoint": str(checkpoint)})
    if config.push is not None:
        hub.require_can_push(config.push, is_dry=config.dry_run)
    if config.onnx:
        onnx_files.require_onnx()
    run_files, place = find_checkpoint(config)
    identity = identity_of(run_files.path)
    require_apart(config.out, [run_files.path, config.glue])
    require_apart(config.out, [place], may_be_inside=False)
    require_free(config, run_files, identity)
    glue_folder = config.glue or (run_files.path / layout.GLUE_RESULTS).parent
    results = read_glue(glue_folder, is_required=config.glue is not None)
    shards = shards_of(run_files)
    with require_kept(place):
        facts = facts_of_run(config, run_files, place, shards)
        networks, tokenizer = load_networks(run_files.path, place), find_tokenizer(run_files, place, shards)
    special_ids, ids = tokenizer.special_ids, comparison_rows(run_files, tokenizer, shards)
    with whole_folder(config.out, "export", overwrite=config.overwrite, refresh=True) as folder:
        for network in networks:
            settings = write_transformers_model(network.model, network.folder(folder), special_ids)
            replace(tokenizer, config={**tokenizer.config, **settings}).save(network.folder(folder))
        results, notes = scores_of_weights(results, weights_fingerprint(folder), glue_folder, config)
        facts = replace(facts, glue=results)
        plot, differences, measured = draw_losses(facts), {}, []
        for network in networks:
            target = network.folder(folder)
            difference = differences[network.name] = compare(network, target, ids, special_ids)
            if config.onnx:
                inputs = {"input_ids": ids, **InputsFor.of(network.model, special_ids["pad"], special_ids["sep"])(ids)}
                measured += onnx_files.write_onnx(network.model, target / "onnx", inputs, network.name)
            (target / LOSSES_PLOT).write_bytes(plot)
            write_card(facts, facts_of_network(network, len(networks) > 1, difference, measured), target)
        mark_whole(folder, "export", run=run_files.name, identity=identity, step=facts.step)
        require_free(config, run_files, identity)  # again: writing may have taken minutes
    made = Exported(config.out, facts.step, differences, files_of(config.out), measured, notes)
    if config.push is not None and not config.dry_run:
        made = replace(made, url=hub.push(config.out, config.push, MARKER, is_private=config.private))
    return made


# The checkpoint


def find_checkpoint(config: ExportConfig) -> tuple[RunFiles, Path]:
    """The run, and the folder of the checkpoint that was asked for. A damaged one is an error."""
    path, asked = config.run, config.checkpoint
    of_checkpoint = layout.run_of_checkpoint(path)
    if of_checkpoint is not None and (path / layout.PROGRESS_FILE).exists():
        if asked != "last":
            raise UserError(f"{path} is one checkpoint: leave --checkpoint {asked} out, or name the run")
        return read_run(of_checkpoint), require_undamaged(path, [])
    if not is_run(path) and (path / "model.safetensors").exists() and (path / "config.json").exists():
        raise UserError(f"{path} is a transformers model already; export takes the folder that electra pretrain wrote")
    run = read_run(path)
    steps = layout.checkpoint_steps(path)
    if not steps:
        settings = read_config(path).settings
        minutes = f" or {settings.save_minutes:g} minutes" if settings.save_minutes is not None else ""
        raise UserError(
            f"{path} has no checkpoint yet; the first is written after {settings.save_every:,} steps{minutes}, "
            "or when the training is stopped with Ctrl-C"
        )
    known = f"there are checkpoints of {', '.join(map(str, steps))}"
    if asked == "last":
        step = steps[-1]
    elif asked == "best":
        best = read_progress(require_undamaged(layout.checkpoint_path(path, steps[-1]), steps)).best_step
        if best is None:
            raise UserError(f"{path} was never validated: no checkpoint is the best; use --checkpoint last")
        step = best
    elif asked.isdecimal():
        step = int(asked)
    else:
        raise UserError(f"--checkpoint is {asked!r}; use last, best or a step: {known}")
    if step not in steps:
        raise UserError(f"{path} has no checkpoint of step {step}; {known}")
    return run, require_undamaged(layout.checkpoint_path(path, step), steps)


def require_undamaged(path: Path, steps: list[int]) -> Path:
    damage = find_damage(path)
    if damage is not None:
        others = [step for step in steps if layout.checkpoint_path(path.parent.parent, step) != path]
        hint = f"take another: --checkpoint {others[-1]}" if others else "resume from an earlier one, or restore it"
        raise UserError(f"{path} is damaged ({damage}); {hint}")
    return path


@contextlib.contextmanager
def require_kept(place: Path) -> Iterator[None]:
    """A run that is still training removes its older checkpoints: if that happens while one is read, the error says so."""
    try:
        yield
    except Exception:
        if place.exists():
            raise
        raise UserError(f"{place} was removed while it was read: training keeps its newest ones; try again") from None


# What is written


def find_tokenizer(run: RunFiles, place: Path, shards: Path | None) -> TokenizerFiles:
    """The one in the checkpoint; older checkpoints of masked language models have none, but their shards do."""
    places = [place / "discriminator", *([] if shards is None else [shards / SHARDS_TOKENIZER])]
    found = next((one for one in places if (one / "tokenizer.json").exists()), None)
    if found is None:
        raise UserError(
            f"there is no tokenizer for {run.path}: put its shards back to {run.stored.data}, or copy tokenizer.json "
            f"and tokenizer_config.json into {places[0]}"
        )
    return load_tokenizer(found)


def require_free(config: ExportConfig, run: RunFiles, identity: str) -> None:
    """Refuse a folder with anything but an unchanged earlier export of the same run: nothing is lost."""
    marker = read_marker(config.out) if config.out.is_dir() else None
    if not config.overwrite and marker is not None and marker.get("identity", identity) != identity:
        raise UserError(
            f"--out {config.out} is the export of another run ({marker['run']}, this one is {run.name}); "
            "name another --out, or add --overwrite"
        )
    require_replaceable(config.out, "export", overwrite=config.overwrite, refresh=True)


def files_of(folder: Path) -> dict[str, int]:
    """Every file and its size."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def shards_of(run: RunFiles) -> Path | None:
    """The shards that it was trained on, if they are still there: others may lie in the same place by now."""
    with contextlib.suppress(UserError, OSError, KeyError):
        if run.shards is not None and describe_data(run.shards).files == run.data.files:
            return run.shards
    return None


def comparison_rows(run: RunFiles, tokenizer: TokenizerFiles, shards: Path | None) -> Tensor:
    """Rows of the shards if they are there, else random tokens: two segments each, the last row padded."""
    with contextlib.suppress(UserError, OSError, KeyError, ValueError):
        if shards is not None:
            split = "valid" if run.data.rows.get("valid", 0) >= NUM_ROWS else "train"
            batches = Batches(shards, NUM_ROWS, split=split, seed=0, verify=False)
            return torch.from_numpy(batches(0))
    special, length = tokenizer.special_ids, run.data.length
    ids = torch.randint(len(tokenizer.vocabulary), (NUM_ROWS, length), generator=torch.Generator().manual_seed(0))
    ids[torch.isin(ids, torch.tensor(list(special.values())))] = special["unk"]
    ids[:, 0], ids[:, length // 2], ids[:, -1] = special["cls"], special["sep"], special["sep"]
    ids[-1, -max(1, length // 4) :] = special["pad"]
    return ids

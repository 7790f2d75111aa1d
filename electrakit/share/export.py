"""A run in, a folder out that transformers opens: the discriminator, `generator/` beside it, tokenizer, card, and ONNX files if asked.

What is written is read again from the disk, and its logits are compared with those of the network that was trained. The folder
appears whole, or not at all.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from electrakit import __version__
from electrakit.data.batches import Batches, read_manifest
from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.data.writing import write_json
from electrakit.errors import UserError
from electrakit.hashes import hash_of_file
from electrakit.loading import weights_fingerprint
from electrakit.model.counts import flops_per_step
from electrakit.model.inputs import InputsFor
from electrakit.run_files import RunFiles, is_run, read_run
from electrakit.share import hub, onnx_files
from electrakit.share.card import CURVES, Facts, write_card
from electrakit.share.card_glue import USED
from electrakit.share.curves import draw_curves
from electrakit.share.networks import Part, compare, load_parts, write_model
from electrakit.share_config import ExportConfig
from electrakit.train.checkpoint import Checkpoints, find_damage, read_progress
from electrakit.train.run_folder import MAY_CHANGE, describe_data, read_config
from electrakit.whole import whole_or_nothing

MARK = "electrakit.json"  # what an export of ours is known by: the run, and a hash for every file
NUM_ROWS = 8  # on which they are compared


@dataclass(frozen=True)
class Exported(os.PathLike):
    """What was written. It can be used as a path."""

    path: Path
    step: int
    """Of the checkpoint that it was made of."""
    differences: dict[str, float]
    """The largest between a logit of the trained network and of what was read from the disk again; by network."""
    files: dict[str, int]
    """All files and their sizes in bytes."""
    onnx: list[onnx_files.Measured] = field(default_factory=list)
    """How the ONNX files compare with torch."""
    notes: list[str] = field(default_factory=list)
    """What to know about the GLUE scores that were found."""
    url: str | None = None
    """On the Hub, if it was sent there."""

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
) -> Exported:
    """Write a run's model for transformers: `export(run, "hf/mine")`; ExportConfig explains the settings."""
    config = ExportConfig(
        run=Path(run),
        out=Path(out),
        checkpoint=str(checkpoint),
        glue=None if glue is None else Path(glue),
        licence=licence,
        onnx=onnx,
        push=push,
        private=private,
        dry_run=dry_run,
    )
    if config.push is not None:
        hub.require_can_push(config.push, is_dry=config.dry_run)
    elif config.dry_run or config.private:
        raise UserError(
            f"--{'dry-run' if config.dry_run else 'private'} goes with --push NAME: add it, or leave this out"
        )
    if config.onnx:
        onnx_files.require_onnx()
    run_files, place = find_checkpoint(config)
    identity = identity_of(run_files)
    require_free(config.out, run_files, identity)
    scores = config.glue or run_files.path / "glue"
    results = read_glue(scores, is_asked=config.glue is not None)
    with while_it_is_there(place):
        facts = facts_of(config, run_files, place)
        parts, tokenizer = load_parts(run_files.path, place), tokenizer_of(run_files, place)
    ids = rows_of(run_files, tokenizer)
    with whole_or_nothing(config.out) as folder:
        for part in parts:
            write_model(part, part.folder(folder), tokenizer)
        results, said = scores_of(weights_fingerprint(folder), results, scores, config)
        facts = replace(facts, glue=results)
        differences, measured = {}, []
        for part in parts:
            own = part.folder(folder)
            differences[part.name] = compare(part, own, ids, tokenizer.special_ids)
            if config.onnx:
                inputs_for = InputsFor.of(part.model, tokenizer.special_ids["pad"], tokenizer.special_ids["sep"])
                inputs = {"input_ids": ids, **inputs_for(ids)}
                measured += onnx_files.write_onnx(part.model, own / "onnx", inputs, part.name)
        picture = draw_curves(run_files, facts.step)
        for part in parts:
            about_it = {**about(part, parts), "difference": differences[part.name]}
            about_it["onnx"] = [one for one in measured if one.network == part.name]
            (part.folder(folder) / CURVES).write_bytes(picture)
            write_card(replace(facts, **about_it), part.folder(folder) / "README.md")
        hashes = {name: hash_of_file(folder / name) for name in files_of(folder)}
        notes = {"format": 1, "electrakit": __version__, "run": run_files.name, "identity": identity}
        write_json(folder / MARK, {**notes, "step": facts.step, "files": hashes})
        require_free(config.out, run_files, identity)  # still: all this may have taken minutes
    made = Exported(config.out, facts.step, differences, files_of(config.out), measured, said)
    if config.push is not None and not config.dry_run:
        made = replace(made, url=hub.push(config.out, config.push, MARK, is_private=config.private))
    return made


# --- which checkpoint --------------------------------------------------------------------------------------------------


def find_checkpoint(config: ExportConfig) -> tuple[RunFiles, Path]:
    """The run, and the folder of the checkpoint that was asked for: whole, or an error."""
    path, asked = config.run, config.checkpoint
    if path.parent.name == "checkpoints" and (path / "state.json").exists():
        if asked != "last":
            raise UserError(f"{path} is one checkpoint: leave --checkpoint {asked} out, or name the run")
        return read_run(path.parent.parent), require_whole(path, [])
    if not is_run(path) and (path / "model.safetensors").exists() and (path / "config.json").exists():
        raise UserError(f"{path} is a transformers model already; export takes the folder that electra pretrain wrote")
    run = read_run(path)
    checkpoints = Checkpoints(path, keep_last=1, milestones=[])
    steps = checkpoints.steps()
    if not steps:
        every = run.settings.get("save_every")
        raise UserError(
            f"{path} has no checkpoint yet; the first is written after {every:,} steps, or when the training is stopped with Ctrl-C"
        )
    known = f"there are checkpoints of {', '.join(map(str, steps))}"
    if asked == "last":
        step = steps[-1]
    elif asked == "best":
        best = read_progress(require_whole(checkpoints.path(steps[-1]), steps)).best_step
        if best is None:
            raise UserError(f"{path} was never validated: no checkpoint is the best; use --checkpoint last")
        step = best
    elif asked.isdecimal():
        step = int(asked)
    else:
        raise UserError(f"--checkpoint is {asked!r}; use last, best or a step: {known}")
    if step not in steps:
        raise UserError(f"{path} has no checkpoint of step {step}; {known}")
    return run, require_whole(checkpoints.path(step), steps)


def require_whole(path: Path, steps: list[int]) -> Path:
    damage = find_damage(path)
    if damage is not None:
        others = [step for step in steps if not path.name.endswith(f"_{step:07d}")]
        hint = f"take another: --checkpoint {others[-1]}" if others else "train on from an earlier one, or restore it"
        raise UserError(f"{path} is damaged ({damage}); {hint}")
    return path


@contextlib.contextmanager
def while_it_is_there(place: Path) -> Iterator[None]:
    """A training that goes on removes its older checkpoints."""
    try:
        yield
    except Exception:
        if place.exists():
            raise
        raise UserError(f"{place} was removed while it was read: a training keeps its newest ones; try again") from None


# --- what is written ---------------------------------------------------------------------------------------------------


def tokenizer_of(run: RunFiles, place: Path) -> TokenizerFiles:
    """The one in the checkpoint; older ones of masked language models have none, but their shards do."""
    shards = own_shards(run)
    places = [place / "discriminator", *([] if shards is None else [shards / "tokenizer"])]
    found = next((one for one in places if (one / "tokenizer.json").exists()), None)
    if found is None:
        raise UserError(
            f"there is no tokenizer for {run.path}: put its shards back to {run.settings.get('data')}, or copy tokenizer.json "
            f"and tokenizer_config.json into {places[0]}"
        )
    return load_tokenizer(found)


def require_free(out: Path, run: RunFiles, identity: str) -> None:
    """Nothing is lost: a folder that is there is an earlier export of the same run, as we wrote it, or empty."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    way_out = "name another --out, or remove it"
    if not out.is_dir():
        raise UserError(f"--out {out} is a file; {way_out}")
    try:
        mark = json.loads((out / MARK).read_text(encoding="utf-8"))
        name, before, hashes = mark["run"], mark["identity"], dict(mark["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"--out {out} is not empty, and no export of ours; {way_out}") from None
    if before != identity:
        raise UserError(f"--out {out} is the export of another run ({name}, this one is {run.name}); {way_out}")
    for path in (one for one in files_of(out) if one != MARK):
        if hashes.get(path) != hash_of_file(out / path):
            what = "was changed by hand" if path in hashes else "was not written by us"
            raise UserError(f"--out {out}: {path} {what}, and would be lost; move it away, or name another --out")


def identity_of(run: RunFiles) -> str:
    """The same for a run that goes on, wherever it lies."""
    settings = {name: value for name, value in run.settings.items() if name not in MAY_CHANGE}
    return xxhash.xxh3_128_hexdigest(json.dumps([settings, run.data], sort_keys=True).encode())


def files_of(folder: Path) -> dict[str, int]:
    """Every file and its size."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def own_shards(run: RunFiles) -> Path | None:
    """What it was trained on, if that is still there: others may lie in the same place by now."""
    with contextlib.suppress(UserError, OSError, KeyError):
        if run.shards is not None and describe_data(run.shards)["files"] == run.data["files"]:
            return run.shards
    return None


def rows_of(run: RunFiles, tokenizer: TokenizerFiles) -> Tensor:
    """Rows of the shards if they are there, else made up of the vocabulary: two segments each, the last one padded."""
    with contextlib.suppress(UserError, OSError, KeyError, ValueError):
        if (shards := own_shards(run)) is not None:
            split = "valid" if run.data["rows"].get("valid", 0) >= NUM_ROWS else "train"
            batches = Batches(shards, NUM_ROWS, split=split, seed=0, verify=False)
            return torch.from_numpy(batches(0))
    special, length = tokenizer.special_ids, run.data["length"]
    ids = torch.randint(len(tokenizer.vocabulary), (NUM_ROWS, length), generator=torch.Generator().manual_seed(0))
    ids[torch.isin(ids, torch.tensor(list(special.values())))] = special["unk"]
    ids[:, 0], ids[:, length // 2], ids[:, -1] = special["cls"], special["sep"], special["sep"]
    ids[-1, -max(1, length // 4) :] = special["pad"]
    return ids


# --- for the card ------------------------------------------------------------------------------------------------------


def facts_of(config: ExportConfig, run: RunFiles, place: Path) -> Facts:
    """What the cards of both networks say of the run; its scores come later."""
    progress = read_progress(place)
    manifest, sources = None, []
    with contextlib.suppress(UserError, OSError, ValueError, KeyError):
        if (shards := own_shards(run)) is not None:
            manifest = read_manifest(shards)
            lines = (shards / "sources.jsonl").read_text(encoding="utf-8").splitlines()
            sources = sorted(map(json.loads, lines), key=lambda each: -each["bytes"])
    stored = read_config(run.path).settings
    return Facts(
        name=(config.push or config.out.resolve().name).rpartition("/")[2],
        place=config.push or str(config.out),
        run=run,
        step=progress.step,
        seconds=progress.seconds,
        flops=flops_per_step(stored) * progress.step,
        manifest=manifest,
        sources=[Path(each["name"]).name for each in sources],
        glue=None,
        licence=config.licence,
    )


def about(part: Part, parts: list[Part]) -> dict[str, Any]:
    """What the cards say of one network."""
    base = part.model.base_model
    return {
        "network": part.name,
        "has_generator": len(parts) > 1,
        "head": part.head,
        "is_custom": part.is_custom,
        "class_name": type(part.model).__name__,
        "model_type": part.model.config.model_type,
        "num_parameters": sum(weight.numel() for weight in part.model.parameters()),
        "num_encoder": sum(weight.numel() for weight in base.parameters()),
        "max_positions": getattr(part.model.config, "max_position_embeddings", None),
    }


def read_glue(folder: Path, is_asked: bool) -> dict[str, Any] | None:
    """results.json of `electra glue`."""
    path = folder / "results.json"
    if not path.exists():
        if is_asked:
            raise UserError(f"--glue {folder} has no results.json; name the folder that electra glue wrote (its --out)")
        return None
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(figures["tasks"], dict) and isinstance(figures["average"], dict)
        assert all(set(task) >= USED for task in figures["tasks"].values())
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{path} cannot be read; run electra glue again, or leave --glue out") from None
    return figures


def scores_of(
    weights: str, results: dict[str, Any] | None, place: Path, config: ExportConfig
) -> tuple[dict[str, Any] | None, list[str]]:
    """The results if they are those of these weights, and what there is to say. Others are refused if they were asked for."""
    if results is None or results.get("weights") == weights:
        return results, []
    if results.get("weights") is None:
        return results, [f"{place} does not say which weights it scored: not checked, the card says so"]
    what = f"{place} has the scores of other weights than these (of {results.get('model')})"
    if config.glue is not None:
        raise UserError(
            f"--glue {what}; export without it, score that with electra glue {config.out}, and export again with its --out"
        )
    return None, [f"{what}: left out of the card; electra glue {config.out} scores these"]

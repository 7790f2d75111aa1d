"""Text in, a folder of shards out: train/valid/test-*.bin, manifest.json and the tokenizer; the same bytes every time.

Workers turn pieces of text into rows, this process appends them in order; see folder.py for the files.
"""

import contextlib
import copy
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from electrakit.config import PrepareConfig
from electrakit.data.batches import read_manifest
from electrakit.data.corpus import Selection, harvest, print_notes, require_documents
from electrakit.data.encode import Encoder
from electrakit.data.files import Notes
from electrakit.data.folder import (
    Built,
    Plan,
    ShardFolder,
    has_notebook,
    is_ours,
    only_writer,
    refuse_other,
    remove_notebook,
)
from electrakit.data.rows import pack
from electrakit.data.sources import Document, Input, find_inputs
from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.errors import UserError, mended_by_user
from electrakit.progress import console


def prepare(inputs: Iterable[str | Path], **settings: Any) -> Path:
    """Turn text into shards in the folder `out`; settings as in PrepareConfig. Goes on where a killed call stopped."""
    config = PrepareConfig.of(inputs, **settings)
    tokenizer = load_tokenizer(config.tokenizer)
    notes = Notes()
    sources = [one for one in find_inputs(config, notes) if not is_ours(one.path, config.out)]
    plan = _plan(config, tokenizer, sources)
    if _is_finished(config.out, plan) and not has_notebook(config.out):
        return _say_finished(config.out)
    with mended_by_user(config.out), only_writer(config.out):
        if _is_finished(config.out, plan):  # by a process that held the lock until now, or was killed at the very end
            remove_notebook(config.out)
            return _say_finished(config.out)
        try:
            folder = _fill(config, tokenizer, plan, sources, notes)
        except _TokieDiffers as difference:
            if plan.read_once:
                raise UserError(
                    f"{difference}. All must be made anew, but {plan.read_once[0]} can be read only once: write that "
                    "text to a file and prepare that, or uninstall tokie; remove the folder or name another --out"
                ) from None
            warning = f"{difference}. All is made anew, without tokie."
            console.print(warning, style="yellow", markup=False, soft_wrap=True)
            folder = _fill(config, tokenizer, plan, sources, notes, fast=False)
    print_notes(folder.notes)
    return config.out


def _fill(
    config: PrepareConfig, tokenizer: TokenizerFiles, plan: Plan, sources: list[Input], notes: Notes, fast: bool = True
) -> ShardFolder:
    """All of the corpus into the folder; `fast=False` starts from the beginning, whatever is there."""
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(
            contextlib.closing(ShardFolder(config, tokenizer, plan, copy.deepcopy(notes), fast))
        )
        selection = Selection(config, folder.num_documents, folder.seen)
        job = Job(str(config.out / "tokenizer"), config, folder.dtype, folder.fast)
        if folder.after[0] < len(sources):
            pieces = harvest(config, sources, functools.partial(build, job), "preparing", folder.after)
            for piece in closing.enter_context(contextlib.closing(pieces)):
                if piece.value.warnings:
                    raise _TokieDiffers(piece.value.warnings[0])
                folder.add(piece, selection.choose(piece))
                if selection.is_full:
                    break
                folder.save_now_and_then()
            folder.after = (len(sources), 0)
            folder.save()
        require_documents(folder.num_rows, folder.notes, config)
        folder.finish()
    return folder


class _TokieDiffers(Exception):
    """The audit has found a difference: ids that were written before, unaudited, may be wrong too."""


# --- text to rows, in the workers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a worker needs to know."""

    tokenizer: str
    config: PrepareConfig
    dtype: str
    fast: bool = True


def build(job: Job, documents: list[Document], identities: np.ndarray) -> Built:
    """Documents in, rows out: what the workers do."""
    encoder, special_ids = _encoder(job.tokenizer, job.fast)
    ids, line_lengths = encoder.encode([line for document in documents for line in document.lines])
    rows = pack(
        ids,
        line_lengths,
        np.array([len(document.lines) for document in documents], np.int64),
        identities,
        style=job.config.rows,
        length=job.config.length,
        special_ids=special_ids,
        seed=job.config.seed,
        dtype=job.dtype,
    )
    warnings, encoder.warnings = encoder.warnings, []
    return Built(rows, choose_splits(identities, job.config.valid, job.config.test), warnings)


def choose_splits(identities: np.ndarray, valid: float, test: float) -> np.ndarray:
    """0 for train, 1 for valid, 2 for test: decided by a document's content alone, so copies stay together.

    Valid is taken from one end and test from the other: a larger share moves documents out of train and nowhere else.
    """
    position = (identities >> np.uint64(11)) / 2**53
    return np.where(position < valid, 1, np.where(position >= 1 - test, 2, 0))


@functools.lru_cache(maxsize=1)
def _encoder(folder: str, fast: bool) -> tuple[Encoder, dict[str, int]]:
    tokenizer = load_tokenizer(folder)
    return Encoder(tokenizer.json, fast), tokenizer.special_ids


# --- what must be the same to go on ----------------------------------------------------------------------------------


def _plan(config: PrepareConfig, tokenizer: TokenizerFiles, sources: list[Input]) -> Plan:
    """All that decides the shards' bytes."""
    settings = {name: value for name, value in config.identity().items() if name not in ("inputs", "tokenizer")}
    lines = [
        json.dumps({"name": one.name, "bytes": one.num_bytes, "start": _hash_of_start(one.path)}) + "\n"
        for one in sources
    ]
    listed = "".join(lines).encode()
    summary = {
        "files": len(sources),
        "bytes": sum(one.num_bytes or 0 for one in sources),
        "xxh3_128": xxhash.xxh3_128_hexdigest(listed),
    }
    entry = {**settings, "tokenizer": tokenizer.fingerprint, "sources": summary}
    read_once = [one.name for one in sources if _can_be_read_only_once(one)]
    return Plan(json.loads(json.dumps(entry, allow_nan=False)), listed, read_once)  # as it will be read again


def _can_be_read_only_once(one: Input) -> bool:
    return one.name == "-" or (one.path is not None and not Path(one.path).is_file())


def _hash_of_start(path: str | None) -> str | None:
    """Enough to notice that a file of the same size is another one; what can be read only once is left alone."""
    if path is None or not Path(path).is_file():
        return None
    try:
        with Path(path).open("rb") as file:
            return xxhash.xxh3_64_hexdigest(file.read(2**16))
    except OSError:
        return None


def _is_finished(out: Path, plan: Plan) -> bool:
    if not (out / "manifest.json").exists():
        return False
    refuse_other(read_manifest(out).get("plan", {}), plan.entry, plan, out)
    if plan.read_once:
        raise UserError(
            f"{out} is finished, but nobody can tell whether {plan.read_once[0]} (standard input, or a pipe) "
            "is the same text as then; name another --out"
        )
    return True


def _say_finished(out: Path) -> Path:
    rows = f"{read_manifest(out)['counts']['rows']:,} rows"
    console.print(f"{out} is finished already: {rows}. Nothing to do.", markup=False, soft_wrap=True)
    return out

"""Prepares a folder of shards from text: train/valid/test-*.bin, manifest.json and the tokenizer; the same bytes every time.

Workers turn batches of documents into rows, this process appends them in order; see shard_writer.py for the files.
"""

import contextlib
import copy
import functools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import require_apart
from electrakit.common.progress import console
from electrakit.config.corpus import (
    SHARDS_MANIFEST,
    SHARDS_TOKENIZER,
    Engine,
    PrepareConfig,
    RowStyle,
    SourceFormat,
    Splitting,
)
from electrakit.data.corpus import Selection, map_corpus, print_notes, require_documents
from electrakit.data.encode import Encoder
from electrakit.data.encode_fast import slow_path_notice
from electrakit.data.manifest import PREPARE_AGAIN, Plan, check_files, make_plan, read_manifest
from electrakit.data.read.formats import Document
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import CorpusInput, find_inputs
from electrakit.data.rows import pack
from electrakit.data.shard_writer import (
    SKIPPED_FILE,
    ShardFolder,
    SplitRows,
    has_progress,
    has_tokenizer,
    is_ours,
    remove_progress,
    require_ours,
    shards_folder,
)
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer


def prepare(
    inputs: Iterable[str | Path],
    *,
    tokenizer: str | Path,
    out: str | Path,
    length: int = 128,
    rows: RowStyle = "full",
    valid: float = 0.01,
    test: float = 0.0,
    seed: int = 0,
    shard_mb: int = 256,
    source: SourceFormat | None = None,
    documents: Splitting = "blank",
    field: str = "text",
    encoding: str | None = None,
    min_words: int = 0,
    dedupe: bool = False,
    limit: int | None = None,
    workers: int | None = None,
    engine: Engine = "local",
) -> Path:
    """Turn text into shards in the folder `out`; PrepareConfig explains the settings. Resumes where a killed call stopped."""
    return _prepare(PrepareConfig(**locals()))


def _prepare(config: PrepareConfig) -> Path:
    shards_folder(config.out).require_ours()
    if not (config.out / SHARDS_MANIFEST).exists():  # else its own tokenizer may be the input
        require_apart(config.out, [config.tokenizer])
    tokenizer = load_tokenizer(config.tokenizer)
    notes = Notes()
    sources = [one for one in find_inputs(config, notes) if not is_ours(one.path, config.out)]
    plan = make_plan(config, tokenizer, sources)
    if not has_progress(config.out) and _report_if_finished(config.out, plan, tokenizer):
        return config.out
    require_ours(config.out, tokenizer)  # before anything is written
    with explain_write_errors(config.out), write_lock(config.out):
        # By a process that held the lock until now, or that was killed at the very end.
        if _report_if_finished(config.out, plan, tokenizer):
            remove_progress(config.out)
            return config.out
        try:
            notes = _fill_folder(config, tokenizer, plan, sources, notes)
        except _TokieDiffers as difference:
            if plan.read_once:
                raise UserError(
                    f"{difference}. The work must start again, but {plan.read_once[0]} can be read only once: write that "
                    "text to a file and prepare that, or uninstall tokie; remove the folder or name another --out"
                ) from None
            warning = f"{difference}. Starting again from the beginning without tokie, which is slower."
            console.print(warning, style="yellow", markup=False, soft_wrap=True)
            notes = _fill_folder(config, tokenizer, plan, sources, notes, fast=False)
    print_notes(notes, config.out / SKIPPED_FILE)
    return config.out


def _fill_folder(
    config: PrepareConfig,
    tokenizer: TokenizerFiles,
    plan: Plan,
    sources: list[CorpusInput],
    notes: Notes,
    fast: bool = True,
) -> Notes:
    """All of the corpus into the folder; `fast=False` starts from the beginning, whatever is there."""
    with contextlib.closing(ShardFolder(config, tokenizer, plan, copy.deepcopy(notes), fast)) as folder:
        done = folder.progress
        if done.after[0] < len(sources):
            _add_documents(config, tokenizer, sources, folder)
            done.after = (len(sources), 0)
            folder.save()
        require_documents(done.num_rows, done.notes, config)
        plan.refuse_changed(sources, config.out)
        folder.finish()
    return done.notes


def _add_documents(
    config: PrepareConfig, tokenizer: TokenizerFiles, sources: list[CorpusInput], folder: ShardFolder
) -> None:
    """Read, encode and pack what is not yet in the folder, and append it."""
    done = folder.progress
    selection = Selection(config, done.num_documents, folder.seen)
    work = functools.partial(build_rows, str(config.out / SHARDS_TOKENIZER), config, folder.dtype, done.fast)
    remarks = [tokenizer.remark, slow_path_notice(tokenizer.json) if done.fast else ""]
    with contextlib.closing(map_corpus(config, sources, work, "preparing", done.after)) as batches:
        for batch in batches:
            if batch.value.warning:
                raise _TokieDiffers(batch.value.warning)
            folder.add(batch, selection.choose(batch))
            while remarks and done.num_rows:  # not before: an error is one line
                if remark := remarks.pop(0):
                    console.print(remark, markup=False, soft_wrap=True)
            if selection.is_full:
                break
            if batch.is_last:  # here, so that a stage without a result does not end with "done"
                require_documents(done.num_rows, done.notes, config)
            folder.save_if_due()


class _TokieDiffers(Exception):
    """The audit has found a difference: ids that were written earlier and not audited may be wrong too."""


# --- text to rows, in the workers ------------------------------------------------------------------------------------


def build_rows(
    tokenizer: str, config: PrepareConfig, dtype: str, fast: bool, documents: list[Document], identities: np.ndarray
) -> SplitRows:
    """Encode and pack a batch of documents, in a worker."""
    encoder, special_ids = _encoder(tokenizer, fast)
    ids, line_lengths = encoder.encode([line for document in documents for line in document.lines])
    rows = pack(
        ids,
        line_lengths,
        np.array([len(document.lines) for document in documents], np.int64),
        identities,
        style=config.rows,
        length=config.length,
        special_ids=special_ids,
        seed=config.seed,
        dtype=dtype,
    )
    return SplitRows(rows, choose_splits(identities, config.valid, config.test), encoder.warning)


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


# --- what is there already -------------------------------------------------------------------------------------------


def _report_if_finished(out: Path, plan: Plan, tokenizer: TokenizerFiles) -> bool:
    """Whether the folder holds these shards. If so, checks every byte and says so; damage and other shards are errors."""
    if not (out / SHARDS_MANIFEST).exists():
        return False
    manifest = read_manifest(out)
    plan.refuse_other(manifest.plan, plan.entry, out)
    if plan.read_once:
        raise UserError(
            f"{out} is finished, but it is not known whether {plan.read_once[0]} (standard input, or a pipe) "
            "is the same text as then; name another --out"
        )
    num_rows = check_files(out, manifest)
    if not has_tokenizer(out, tokenizer):
        raise UserError(f"{out / 'tokenizer'} is not the tokenizer that made these shards: {PREPARE_AGAIN}")
    console.print(f"{out} is finished already: {num_rows:,} rows. Nothing to do.", markup=False, soft_wrap=True)
    return True

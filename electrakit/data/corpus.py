"""Maps a function over the documents of a corpus with all workers, in order, and decides which documents count."""

import functools
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from rich.markup import escape

from electrakit.common.errors import UserError
from electrakit.common.progress import console, progress
from electrakit.common.workers_ray import open_pool
from electrakit.config.corpus import CorpusConfig
from electrakit.data.read.formats import ChunkBatch, Document, identity, read_batch
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import BATCH_BYTES, CorpusInput, cut_inputs

Value = TypeVar("Value")
Build = Callable[[list[Document], np.ndarray], Value]
COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".zip", ".parquet")
NUM_SHOWN = 2  # places of each note on the screen
MAX_COMPRESSION = 10  # about the most text in a byte of a compressed corpus


@dataclass
class BatchResult(Generic[Value]):
    """What a worker made of one batch of documents."""

    value: Value
    identities: np.ndarray  # uint64, one per document: decides its split and its rows
    contents: np.ndarray  # uint64, one per document: a hash of its content, for --dedupe
    notes: Notes
    next_position: tuple[int, int]  # where the next batch starts
    num_bytes_read: int
    places: list[tuple[str, int]]  # with --dedupe: the file and the line of each document
    is_last: bool = False  # of the corpus


def map_corpus(
    config: CorpusConfig, inputs: list[CorpusInput], build: Build[Value], title: str, start: tuple[int, int] = (0, 0)
) -> Generator[BatchResult[Value], None, None]:
    """`build(documents, identities)` for every batch of the corpus, in order, whatever the number of workers."""
    sizes = [one.num_bytes for one in inputs]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    work = functools.partial(_work, config, build)
    pool = open_pool(config.engine, config.workers, config.num_workers, at_most=_max_batches(inputs))
    with pool as workers, progress(title, total) as update:
        for result in workers.map(work, cut_inputs(inputs, config, workers, start), _describe):
            update(result.num_bytes_read)
            result.is_last = result.next_position[0] == len(inputs)
            yield result


def _max_batches(inputs: list[CorpusInput]) -> float:
    """How many batches there can be: a small file keeps few workers busy."""
    num_bytes = 0
    for one in inputs:
        if one.num_bytes is None:
            return math.inf
        num_bytes += one.num_bytes * (MAX_COMPRESSION if one.name.endswith(COMPRESSED) else 1)
    return num_bytes // BATCH_BYTES + 1


def _describe(batch: ChunkBatch) -> str:
    return f"{batch.chunks[0].name}:{batch.chunks[0].first_line}" if batch.chunks else "an empty batch"


def _work(config: CorpusConfig, build: Build[Any], batch: ChunkBatch) -> BatchResult[Any]:
    places: list[tuple[str, int]] = []
    documents, notes = read_batch(batch, config, places if config.dedupe else None)
    identities = np.array([identity(document) for document in documents], np.uint64)
    contents = identities.copy()
    for number, document in enumerate(documents):
        if document.key is not None:  # sections of one document share its identity, but they are no copies
            contents[number] = identity(document._replace(key=None))
    value = build(documents, identities)
    return BatchResult(value, identities, contents, notes, batch.next_position, batch.num_bytes_read, places)


class Selection:
    """Which documents count: --dedupe and --limit, decided in one place and in the order of the corpus."""

    def __init__(self, config: CorpusConfig, num_documents: int = 0, seen: np.ndarray | None = None) -> None:
        self.limit = config.limit
        self.num_documents = num_documents
        self.seen = SeenHashes(seen) if config.dedupe else None

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.num_documents >= self.limit

    def choose(self, batch: BatchResult[Any]) -> np.ndarray:
        """True for each document of the batch that counts."""
        chosen = np.ones(len(batch.contents), bool)
        if self.seen is not None:
            chosen = self.seen.are_new(batch.contents)
            for number in np.flatnonzero(~chosen):
                name, line = batch.places[number]
                batch.notes.add("copy of an earlier document; left out", f"{name}:{line}")
        if self.limit is not None:
            chosen &= np.cumsum(chosen) <= self.limit - self.num_documents
        self.num_documents += int(chosen.sum())
        return chosen


class SeenHashes:
    """A growing set of 64-bit hashes at 8 bytes each: sorted arrays, merged when two have about the same size."""

    def __init__(self, hashes: np.ndarray | None = None) -> None:
        self.levels = [np.sort(hashes) if hashes is not None else np.zeros(0, np.uint64)]

    def are_new(self, hashes: np.ndarray) -> np.ndarray:
        """True where a hash occurs for the first time, here and in all calls before."""
        unique, first = np.unique(hashes, return_index=True)
        is_known = np.zeros(len(unique), bool)
        for level in self.levels:
            if len(level):
                place = np.searchsorted(level, unique).clip(max=len(level) - 1)
                is_known |= level[place] == unique
        self.levels.append(unique[~is_known])
        while len(self.levels) > 1 and len(self.levels[-2]) <= 2 * len(self.levels[-1]):
            self.levels[-2:] = [np.sort(np.concatenate(self.levels[-2:]))]
        are_new = np.zeros(len(hashes), bool)
        are_new[first[~is_known]] = True
        return are_new


def require_documents(num_documents: int, notes: Notes, config: CorpusConfig) -> None:
    """Raise an error with the reasons if nothing in the corpus can be used."""
    if not num_documents:
        reasons = "; ".join(f"{note.problem} ({note.places[0]})" for note in notes)
        raise UserError(f"no usable text in {', '.join(config.inputs)}: {reasons or 'nothing there'}")


def print_notes(notes: Notes, all_places: Path | None = None) -> None:
    """A line for each note, and the file that lists all places."""
    for note in notes:
        where = ", ".join(note.places[:NUM_SHOWN]) + (", ..." if len(note.places) > NUM_SHOWN else "")
        console.print(f"[yellow]{note.count:,} × {escape(note.text)}[/]  [dim]{escape(where)}[/]", soft_wrap=True)
    if all_places is not None and any(len(note.places) > NUM_SHOWN for note in notes):
        console.print(f"Where all of these are: {all_places}", style="dim", markup=False, soft_wrap=True)

"""A corpus in, what was made of its documents out: reads all sources with all workers, in order, with a progress bar."""

import functools
import math
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from rich.markup import escape

from electrakit.config import CorpusConfig
from electrakit.data.files import Notes
from electrakit.data.sources import PIECE_BYTES, Document, Input, Piece, cut, identity, read
from electrakit.engines import open_workers
from electrakit.errors import UserError
from electrakit.progress import console, progress

Value = TypeVar("Value")
Build = Callable[[list[Document], np.ndarray], Value]
PACKED = (".gz", ".xz", ".bz2", ".zst", ".zip", ".parquet")
NUM_SHOWN = 2  # places of each kind of note on the screen
MOST_TEXT_OF_PACKED = 10  # about the most text in a byte of a compressed corpus
_WHAT_IS_KEPT = re.compile("; [^;]* (?:is|are) kept$")  # nothing is, if there is no text


@dataclass
class Harvest(Generic[Value]):
    """What a worker made of one piece."""

    value: Value
    identities: np.ndarray  # uint64, one for each document: what decides its split and its rows
    contents: np.ndarray  # uint64, one for each document: the same content, the same number
    notes: Notes
    after: tuple[int, int]  # where to go on after this piece
    num_bytes_read: int
    places: list[tuple[str, int]]  # with --dedupe: the file and the line of each document
    is_last: bool = False  # of the corpus


def harvest(
    config: CorpusConfig, inputs: list[Input], build: Build[Value], title: str, start: tuple[int, int] = (0, 0)
) -> Generator[Harvest[Value], None, None]:
    """`build(documents, identities)` for every piece of the corpus, in order, whatever the number of workers."""
    sizes = [one.num_bytes for one in inputs]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    work = functools.partial(_work, config, build)
    team = open_workers(config.engine, config.workers, config.num_workers, at_most=_most_pieces(inputs))
    with team as workers, progress(title, total) as update:
        for result in workers.map(work, cut(inputs, config, workers, start), _describe):
            update(result.num_bytes_read)
            result.is_last = result.after[0] == len(inputs)
            yield result


def _most_pieces(inputs: list[Input]) -> float:
    """How many pieces there can be: a small file keeps few workers busy."""
    num_bytes = 0
    for one in inputs:
        if one.num_bytes is None:
            return math.inf
        num_bytes += one.num_bytes * (MOST_TEXT_OF_PACKED if one.name.endswith(PACKED) else 1)
    return num_bytes // PIECE_BYTES + 1


def _describe(piece: Piece) -> str:
    return f"{piece.parts[0].name}:{piece.parts[0].first_line}" if piece.parts else "an empty piece"


def _work(config: CorpusConfig, build: Build[Any], piece: Piece) -> Harvest[Any]:
    places: list[tuple[str, int]] = []
    documents, notes = read(piece, config, places if config.dedupe else None)
    identities = np.array([identity(document) for document in documents], np.uint64)
    contents = identities.copy()
    for number, document in enumerate(documents):
        if document.key is not None:  # the parts of a long document have one identity, but they are no copies
            contents[number] = identity(document._replace(key=None))
    value = build(documents, identities)
    return Harvest(value, identities, contents, notes, piece.after, piece.num_bytes_read, places)


class Selection:
    """Which documents count: --dedupe and --limit, decided in one place and in the order of the corpus."""

    def __init__(self, config: CorpusConfig, num_documents: int = 0, seen: np.ndarray | None = None) -> None:
        self.limit = config.limit
        self.num_documents = num_documents
        self.seen = Seen(seen) if config.dedupe else None

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.num_documents >= self.limit

    def choose(self, harvested: Harvest[Any]) -> np.ndarray:
        """True for each document of the piece that counts."""
        chosen = np.ones(len(harvested.contents), bool)
        if self.seen is not None:
            chosen = self.seen.are_new(harvested.contents)
            for number in np.flatnonzero(~chosen):
                name, line = harvested.places[number]
                harvested.notes.add("copy of an earlier document; left out", f"{name}:{line}")
        if self.limit is not None:
            chosen &= np.cumsum(chosen) <= self.limit - self.num_documents
        self.num_documents += int(chosen.sum())
        return chosen


class Seen:
    """A growing set of 64-bit numbers at 8 bytes each: sorted arrays that are merged when two are of a size."""

    def __init__(self, numbers: np.ndarray | None = None) -> None:
        self.levels = [np.sort(numbers) if numbers is not None else np.zeros(0, np.uint64)]

    def are_new(self, numbers: np.ndarray) -> np.ndarray:
        """True where a number occurs for the first time, here and in all calls before."""
        unique, first = np.unique(numbers, return_index=True)
        is_known = np.zeros(len(unique), bool)
        for level in self.levels:
            if len(level):
                place = np.searchsorted(level, unique).clip(max=len(level) - 1)
                is_known |= level[place] == unique
        self.levels.append(unique[~is_known])
        while len(self.levels) > 1 and len(self.levels[-2]) <= 2 * len(self.levels[-1]):
            self.levels[-2:] = [np.sort(np.concatenate(self.levels[-2:]))]
        are_new = np.zeros(len(numbers), bool)
        are_new[first[~is_known]] = True
        return are_new


def require_documents(num_documents: int, notes: Notes, config: CorpusConfig) -> None:
    """Nothing usable is an error that says why."""
    if not num_documents:
        reasons = "; ".join(f"{_WHAT_IS_KEPT.sub('', what)} ({where[0]})" for what, where in notes.examples.items())
        raise UserError(f"no usable text in {', '.join(config.inputs)}: {reasons or 'nothing there'}")


def print_notes(notes: Notes, all_places: Path | None = None) -> None:
    """What was met on the way, a line for each kind, and the file that lists all of it."""
    for what, count in notes.counts.items():
        where = ", ".join(notes.examples[what][:NUM_SHOWN]) + (", ..." if len(notes.examples[what]) > NUM_SHOWN else "")
        console.print(f"[yellow]{count:,} × {escape(what)}[/]  [dim]{escape(where)}[/]", soft_wrap=True)
    if all_places is not None and any(len(places) > NUM_SHOWN for places in notes.examples.values()):
        console.print(f"Where all of these are: {all_places}", style="dim", markup=False, soft_wrap=True)

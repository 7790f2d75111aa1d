"""Writes a shards folder: files that grow, and progress files that let a killed call resume at any moment.

Now and then the shard files are synced, and `.prepare/progress.json` records how much of them counts; a start after a kill
cuts the files back to that and continues. `manifest.json` is written last: a folder without it is not finished.
"""

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from electrakit import __version__
from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_file
from electrakit.common.json_files import write_json
from electrakit.common.ownership import WorkFolder
from electrakit.common.progress import console
from electrakit.common.sync import sync_open
from electrakit.config.corpus import SHARDS_MANIFEST, SHARDS_SOURCES, SHARDS_TOKENIZER, PrepareConfig
from electrakit.data.corpus import BatchResult
from electrakit.data.manifest import DTYPES, Manifest, ManifestSplit, Plan, ShardFile
from electrakit.data.read.notes import CorpusNote, Notes
from electrakit.data.rows import COUNTS, DocumentCounts, Rows
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer

SPLITS = ("train", "valid", "test")
SKIPPED_FILE = "skipped.jsonl"
PROGRESS_FOLDER = ".prepare"
SHARD = re.compile(r"(train|valid|test)-[0-9]{5}\.bin(\.partial)?")
# Written under a temporary name first.
ATOMIC_FILES = ("plan.json", "progress.json", SHARDS_MANIFEST, SHARDS_SOURCES, SKIPPED_FILE)
NUM_PLACES = 5  # of each note in the manifest; skipped.jsonl has more
OUR_FILES = re.compile(
    rf"{SHARD.pattern}|manifest\.json|(sources|skipped)\.jsonl|\.lock|electrakit\.json|tokenizer/(tokenizer\.json|tokenizer_config\.json|vocab\.txt)"
    r"|\.prepare/(plan\.json|progress\.json|seen\.bin|[a-z.]+\.tmp)"
)
MAX_SAVING_SHARE = 0.005  # of the time: on most disks, a kill then costs a second or two of work

Content = TypeVar("Content")


@dataclass
class SplitRows:
    """The rows of a batch of documents, and the split of each document."""

    rows: Rows
    splits: np.ndarray  # of each document: an index of SPLITS
    warning: str  # "" if tokie and tokenizers agree


@dataclass
class WrittenFiles:
    """The files of one split so far."""

    finished: list[ShardFile] = field(default_factory=list)
    num_rows: int = 0  # how much of the file that grows counts


@dataclass
class PrepareProgress:
    """progress.json: how much of the corpus is in the shards, and how much of the shards counts."""

    notes: Notes
    fast: bool  # with tokie; a run without it continues without it
    after: tuple[int, int] = (0, 0)  # where the next batch of the corpus starts
    counts: dict[str, Counter[str]] = field(default_factory=lambda: {split: Counter() for split in SPLITS})
    files: dict[str, WrittenFiles] = field(default_factory=lambda: {split: WrittenFiles() for split in SPLITS})
    num_seen: int = 0  # documents that --dedupe has seen

    @property
    def num_documents(self) -> int:
        return sum(counts["documents"] for counts in self.counts.values())

    @property
    def num_rows(self) -> int:
        return sum(counts["rows"] for counts in self.counts.values())

    def as_json(self) -> dict[str, Any]:
        files = {split: asdict(written) for split, written in self.files.items()}
        return {**vars(self), "files": files, "notes": [asdict(note) for note in self.notes]}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> "PrepareProgress":
        first, second = map(int, saved["after"])
        counts, files = saved["counts"], saved["files"]
        return cls(
            notes=_read_notes(saved["notes"]),
            fast=bool(saved["fast"]),
            after=(first, second),
            counts={split: Counter({name: int(number) for name, number in counts[split].items()}) for split in SPLITS},
            files={
                split: WrittenFiles(
                    [ShardFile(**one) for one in files[split]["finished"]], int(files[split]["num_rows"])
                )
                for split in SPLITS
            },
            num_seen=int(saved["num_seen"]),
        )


class ShardFolder:
    """The growing shards, and in `.prepare` the progress files, which are removed at the end: `plan.json` has what decides
    the shards' bytes, `progress.json` how much of the shards counts, `seen.bin` the documents that --dedupe has seen.
    """

    def __init__(
        self, config: PrepareConfig, tokenizer: TokenizerFiles, plan: Plan, notes: Notes, fast: bool = True
    ) -> None:
        """Resumes where progress.json ends; with `fast=False`, starts from the beginning."""
        self.config, self.tokenizer, self.plan = config, tokenizer, plan
        self.path = config.out
        self.progress_folder = config.out / PROGRESS_FOLDER
        self.vocab_size = len(tokenizer.vocabulary)
        self.dtype = "uint16" if self.vocab_size <= 65_535 else "uint32"
        self.next_save = time.monotonic()
        self.progress = (self._saved_progress() if fast else None) or self._start(PrepareProgress(notes, fast))
        sources = "".join(json.dumps(asdict(one)) + "\n" for one in plan.sources)
        atomic_write(self.path / SHARDS_SOURCES, sources.encode(), self.progress_folder)
        self.writers = {
            split: ShardWriter(self.path, split, config.length, DTYPES[self.dtype], config.shard_mb, written)
            for split, written in self.progress.files.items()
        }
        self.seen = self._load_seen() if config.dedupe else None
        for writer in self.writers.values():  # when all have been checked
            writer.open()

    def _saved_progress(self) -> PrepareProgress | None:
        """That of an earlier call, if it has saved any rows."""
        saved = require_ours(self.path, self.tokenizer)
        if saved is None or not saved.num_rows:
            return None
        self.plan.refuse_other(_read(self.path, "plan.json", dict) or {}, self._plan_json(), self.path)
        if self.plan.read_once:
            raise UserError(
                f"{self.path} is unfinished, and what came from {self.plan.read_once[0]} (standard input, or a pipe) "
                "cannot be read again; remove the folder and start again, or name another --out"
            )
        console.print(f"Resuming after {saved.num_rows:,} rows.")
        return saved

    def _start(self, progress: PrepareProgress) -> PrepareProgress:
        self.progress_folder.mkdir(exist_ok=True)
        self._write_json(self.progress_folder / "plan.json", self._plan_json())
        self._write_json(self.progress_folder / "progress.json", progress.as_json())  # from now on, the folder is ours
        shards_folder(self.path).own()
        if not has_tokenizer(self.path, self.tokenizer):
            self.tokenizer.for_length(self.config.length).save(self.path / SHARDS_TOKENIZER)
        return progress

    def _plan_json(self) -> dict[str, Any]:
        return {**self.plan.entry, "electrakit": __version__}

    def _load_seen(self) -> np.ndarray:
        """The hashes of the documents that --dedupe has seen so far."""
        path, num_bytes = self.progress_folder / "seen.bin", 8 * self.progress.num_seen
        path.touch()
        if path.stat().st_size < num_bytes:
            raise UserError(f"{path} is shorter than it was left; remove the folder and start again")
        os.truncate(path, num_bytes)
        self.seen_file = path.open("ab", buffering=0)
        return np.fromfile(path, np.uint64)

    def add(self, batch: BatchResult[SplitRows], chosen: np.ndarray) -> None:
        """Append the rows of the chosen documents to their splits, and count them."""
        rows, splits, progress = batch.value.rows, batch.value.splits, self.progress
        for number, split in enumerate(SPLITS):
            belongs = chosen & (splits == number)
            self.writers[split].append(rows.ids[np.repeat(belongs, rows.counts["rows"])])
            progress.counts[split].update({name: int(numbers[belongs].sum()) for name, numbers in rows.counts.items()})
        if self.seen is not None:
            write_numbers(self.seen_file, batch.contents)
            progress.num_seen += len(batch.contents)
        progress.notes.merge(batch.notes)
        progress.after = batch.next_position

    def save_if_due(self) -> None:
        if time.monotonic() >= self.next_save:
            self.save()

    def save(self) -> None:
        """From now on, a start after a kill continues from here."""
        started = time.monotonic()
        for file in self._open_files():
            sync_open(file.fileno(), self.path / file.name)
        self._write_json(self.progress_folder / "progress.json", self.progress.as_json())
        ended = time.monotonic()
        self.next_save = ended + (ended - started) / MAX_SAVING_SHARE

    def _write_json(self, path: Path, content: dict[str, Any]) -> None:
        write_json(path, content, self.progress_folder, ascii_only=True)

    def finish(self) -> None:
        """Close the files and write the manifest, which makes them valid."""
        counts, notes = self.progress.counts, self.progress.notes
        splits = {
            split: ManifestSplit.of(counts[split], files=writer.finish()) for split, writer in self.writers.items()
        }
        manifest = Manifest(
            electrakit=__version__,
            length=self.config.length,
            dtype=self.dtype,
            vocab_size=self.vocab_size,
            special_ids=self.tokenizer.special_ids,
            counts=DocumentCounts.of({name: sum(one[name] for one in counts.values()) for name in COUNTS}),
            splits={name: split for name, split in splits.items() if split.rows},
            skipped=notes.as_json(NUM_PLACES),
            plan=self.plan.entry,
        )
        if notes.total:
            atomic_write(self.path / SKIPPED_FILE, _skipped_lines(notes), self.progress_folder)
        self._write_json(self.path / SHARDS_MANIFEST, asdict(manifest))
        remove_progress(self.path)

    def _open_files(self) -> list[BinaryIO]:
        return [writer.file for writer in self.writers.values()] + ([] if self.seen is None else [self.seen_file])

    def close(self) -> None:
        """Close all files as they are."""
        for file in self._open_files():
            file.close()


class ShardWriter:
    """Appends rows to one split's files: NAME.bin.partial while it grows, NAME.bin when it is full."""

    def __init__(
        self, folder: Path, split: str, length: int, dtype: np.dtype[Any], shard_mb: int, written: WrittenFiles
    ) -> None:
        self.folder, self.split, self.dtype, self.written = folder, split, dtype, written
        self.row_bytes = length * dtype.itemsize
        self.max_rows = max(1, shard_mb * 2**20 // self.row_bytes)
        self._cut_back()

    @property
    def path(self) -> Path:
        return self.folder / f"{self.split}-{len(self.written.finished):05d}.bin"

    @property
    def partial(self) -> Path:
        return self.path.with_suffix(".bin.partial")

    def open(self) -> None:
        self.file: BinaryIO = self.partial.open("ab", buffering=0)

    def _cut_back(self) -> None:
        """Bring the files to the state that was last saved; what was written after it is made again."""
        kept = {file.name: file.rows * self.row_bytes for file in self.written.finished}
        for path in sorted(self.folder.glob(f"{self.split}-*.bin*")):
            if not SHARD.fullmatch(path.name):
                continue  # such as train-00000.bin.bak, which is the user's
            if path == self.path:
                path.replace(self.partial)
            elif path.name not in kept and path != self.partial:
                if path.suffix == ".bin" and path.stat().st_size != self.max_rows * self.row_bytes:
                    raise UserError(f"{path} was not written by electrakit; move it away, or name another --out")
                path.unlink()
        self.partial.touch()
        kept[self.partial.name] = self.written.num_rows * self.row_bytes
        for name, num_bytes in kept.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size < num_bytes:
                raise UserError(f"{path} is shorter than it was left; remove the folder and start again")
        os.truncate(self.partial, kept[self.partial.name])

    def append(self, rows: np.ndarray) -> None:
        while len(rows):
            if self.written.num_rows == self.max_rows:
                self._end_file()
                self.open()
            room = self.max_rows - self.written.num_rows
            write_numbers(self.file, rows[:room].astype(self.dtype, copy=False))
            self.written.num_rows += len(rows[:room])
            rows = rows[room:]

    def _end_file(self) -> None:
        """The growing file gets its name and its entry in the manifest."""
        sync_open(self.file.fileno(), self.partial)
        self.file.close()
        self.partial.replace(self.path)
        self.written.finished.append(ShardFile(self.path.name, self.written.num_rows, hash_file(self.path)))
        self.written.num_rows = 0

    def finish(self) -> list[ShardFile]:
        """End the last file; all of them, for the manifest."""
        if self.written.num_rows:
            self._end_file()
        else:
            self.partial.unlink()
        return self.written.finished


def write_numbers(file: BinaryIO, numbers: np.ndarray) -> None:
    """All of it, straight to the file: nothing waits in a buffer that a full disk could not take later."""
    rest = np.ascontiguousarray(numbers).data.cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _read_notes(saved: Any) -> Notes:
    """Those of progress.json; earlier versions had them by their text."""
    if isinstance(saved, dict):
        entries = {text: (entry.get("kept", ""), entry) for text, entry in saved.items()}
        return Notes(
            CorpusNote(text.removesuffix(f"; {kept}") if kept else text, kept, entry["count"], entry["first"])
            for text, (kept, entry) in entries.items()
        )
    return Notes(CorpusNote(**entry) for entry in saved)


def _skipped_lines(notes: Notes) -> bytes:
    """skipped.jsonl: a line for each place of each note."""
    lines = (
        json.dumps({"what": note.text, "where": place}, ensure_ascii=False) + "\n"
        for note in notes
        for place in note.places
    )
    return "".join(lines).encode("utf-8", "replace")


# --- what is in the folder -------------------------------------------------------------------------------------------


def require_ours(out: Path, tokenizer: TokenizerFiles) -> PrepareProgress | None:
    """The progress of an earlier call in a folder that is not finished. What another program, or another run, has made is refused."""
    saved = _read(out, "progress.json", PrepareProgress.from_json)
    if saved is not None or not out.is_dir():
        return saved
    lists = (SHARDS_SOURCES, SKIPPED_FILE)
    foreign = [one.name for one in out.iterdir() if SHARD.fullmatch(one.name) or one.name in lists]
    if (out / SHARDS_TOKENIZER).exists() and not has_tokenizer(out, tokenizer):
        foreign.append(SHARDS_TOKENIZER)
    if (plan := _read(out, "plan.json", dict)) is not None and "electrakit" not in plan:
        foreign.append(f"{PROGRESS_FOLDER}/plan.json")
    if (out / PROGRESS_FOLDER / "seen.bin").exists():
        foreign.append(f"{PROGRESS_FOLDER}/seen.bin")
    if foreign:
        raise UserError(f"{out} holds {min(foreign)} of something else; name another --out, or move it away")
    return None


def _read(out: Path, name: str, parse: Callable[[Any], Content]) -> Content | None:
    path = out / PROGRESS_FOLDER / name
    try:
        return parse(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is damaged, or not ours ({error}); remove the folder and start again, or name another --out"
        ) from None


def has_tokenizer(out: Path, wanted: TokenizerFiles) -> bool:
    """Whether this very tokenizer lies beside the shards."""
    path = out / SHARDS_TOKENIZER / "tokenizer.json"  # the last file of a tokenizer to be written
    try:
        return path.is_file() and load_tokenizer(path).fingerprint == wanted.fingerprint
    except UserError:
        return False


def shards_folder(out: Path) -> WorkFolder:
    """Its names are not in the marker: progress.json and manifest.json list what is ours."""
    return WorkFolder(out, "shards", ())


def has_progress(out: Path) -> bool:
    return (out / PROGRESS_FOLDER / "progress.json").exists()


def remove_progress(out: Path) -> None:
    for name in ("plan.json", "seen.bin", *(f"{one}.tmp" for one in ATOMIC_FILES), "progress.json"):
        (out / PROGRESS_FOLDER / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something that is not ours may be in it
        (out / PROGRESS_FOLDER).rmdir()


def is_ours(path: str | None, out: Path) -> bool:
    """Whether a source is a file that we write: the folder may lie in the corpus, and text may lie in the folder."""
    if path is None:
        return False
    place, folder = Path(path).absolute(), out.absolute()
    return place.is_relative_to(folder) and OUR_FILES.fullmatch(place.relative_to(folder).as_posix()) is not None

"""Text in, a folder of shards out: train/valid/test-*.bin, manifest.json and the tokenizer; the same bytes every time.

Workers turn pieces of text into rows, this process appends them in order. Every few seconds the files are synced and
`progress.json` says how far they count; a start after a kill cuts the files back to that and goes on. `manifest.json` is
written last: a folder without it is not finished.
"""

import contextlib
import fcntl
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from electrakit import __version__
from electrakit.config import PrepareConfig
from electrakit.data.corpus import Harvest, Selection, harvest, print_notes, require_documents
from electrakit.data.encode import Encoder
from electrakit.data.files import Notes
from electrakit.data.rows import COUNTS, Rows, pack
from electrakit.data.sources import Document, find_inputs
from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.errors import UserError
from electrakit.progress import console

FORMAT = 1
SPLITS = ("train", "valid", "test")
SECONDS_BETWEEN_SAVES = 5.0


def prepare(inputs: Iterable[str | Path], **settings: Any) -> Path:
    """Turn text into shards in the folder `out`; settings as in PrepareConfig. Goes on where a killed call stopped."""
    config = PrepareConfig(inputs=tuple(map(str, inputs)), **settings)
    tokenizer = load_tokenizer(config.tokenizer)
    notes = Notes()
    sources = find_inputs(config, notes)
    plan = {
        **{name: value for name, value in config.identity().items() if name not in ("inputs", "tokenizer")},
        "tokenizer": tokenizer.fingerprint,
        "sources": [{"name": one.name, "bytes": one.num_bytes} for one in sources],
    }
    config.out.mkdir(parents=True, exist_ok=True)
    with _only_writer(config.out):
        finished = config.out / "manifest.json"
        if finished.exists():
            manifest = json.loads(finished.read_text())
            _refuse_other(manifest["plan"], plan, config.out)
            console.print(f"{config.out} is finished already: {manifest['counts']['rows']:,} rows. Nothing to do.")
            return config.out
        if not (config.out / "tokenizer").exists():
            tokenizer.save(config.out / "tokenizer")
        state = _start(config.out, plan, notes)
        writers = {split: _Writer(config.out, split, config, tokenizer, state.files.get(split, [])) for split in SPLITS}
        job = Job(str(config.out / "tokenizer"), config, _dtype(tokenizer))
        selection = Selection(config, state.counts["documents"], _load_seen(config.out, state.num_seen))
        with (config.out / "seen.bin").open("ab") as seen_file:
            last_save = time.monotonic()
            for piece in _pieces(config, sources, job, state):
                _add(piece, selection, writers, state)
                if selection.seen is not None:
                    seen_file.write(piece.identities.tobytes())
                    state.num_seen += len(piece.identities)
                if selection.is_full:
                    state.after = (len(sources), 0)
                if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or selection.is_full:
                    _save(config.out, state, writers, seen_file)
                    last_save = time.monotonic()
                if selection.is_full:
                    break
            _save(config.out, state, writers, seen_file)
        require_documents(state.counts["documents"], state.notes, config)
        _finish(config, tokenizer, plan, state, writers)
    return config.out


@dataclass(frozen=True)
class Job:
    """What a worker needs to know."""

    tokenizer: str
    config: PrepareConfig
    dtype: str
    fast: bool = True


@dataclass
class Built:
    """A piece's documents as rows, and where each document belongs."""

    rows: Rows
    splits: np.ndarray  # of each document: a place in SPLITS
    warnings: list[str]


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
    """0 for train, 1 for valid, 2 for test: decided by a document's content alone, so copies stay together."""
    position = (identities >> np.uint64(11)) / 2**53
    return np.where(position < valid, 1, np.where(position < valid + test, 2, 0))


@functools.lru_cache(maxsize=1)
def _encoder(folder: str, fast: bool) -> tuple[Encoder, dict[str, int]]:
    tokenizer = load_tokenizer(folder)
    return Encoder(tokenizer.json, fast), tokenizer.special_ids


def _dtype(tokenizer: TokenizerFiles) -> str:
    return "uint16" if len(tokenizer.vocabulary) <= 65_535 else "uint32"


def _pieces(config: PrepareConfig, sources: list[Any], job: Job, state: "_State") -> Iterator[Harvest[Built]]:
    if state.after[0] < len(sources):
        yield from harvest(config, sources, functools.partial(build, job), "preparing", state.after)


def _add(piece: Harvest[Built], selection: Selection, writers: dict[str, "_Writer"], state: "_State") -> None:
    """Append a piece's rows to their splits and count them."""
    rows, splits = piece.value.rows, piece.value.splits
    chosen = selection.choose(piece)
    for number, split in enumerate(SPLITS):
        belongs = chosen & (splits == number)
        if not belongs.any():
            continue
        writers[split].append(rows.ids[np.repeat(belongs, rows.counts["rows"])])
        counts = {name: int(numbers[belongs].sum()) for name, numbers in rows.counts.items()}
        counts["documents"] = int(belongs.sum())
        state.counts.update(counts)
        state.split_counts.setdefault(split, Counter()).update(counts)
    state.notes.merge(piece.notes)
    state.after = piece.after
    for warning in piece.value.warnings:
        console.print(f"[yellow]{warning}", soft_wrap=True)


# --- files -----------------------------------------------------------------------------------------------------------


class _Writer:
    """Appends rows to one split's files: NAME.bin.partial while it grows, NAME.bin when it is full."""

    def __init__(
        self, folder: Path, split: str, config: PrepareConfig, tokenizer: TokenizerFiles, rows_per_file: list[int]
    ) -> None:
        self.folder, self.split, self.length, self.dtype = folder, split, config.length, np.dtype(_dtype(tokenizer))
        self.max_rows = max(1, config.shard_mb * 2**20 // (config.length * self.dtype.itemsize))
        self.rows_per_file = rows_per_file or [0]
        self._cut_back()
        self.file: BinaryIO | None = None

    def path(self, number: int) -> Path:
        return self.folder / f"{self.split}-{number:05d}.bin"

    def partial(self, number: int) -> Path:
        return self.path(number).with_suffix(".bin.partial")

    def _cut_back(self) -> None:
        """Bring the files to the state that was last saved; what was written after it is made again."""
        last = len(self.rows_per_file) - 1
        for path in self.folder.glob(f"{self.split}-*.bin*"):
            number = int(path.name.removeprefix(f"{self.split}-").split(".")[0])
            if number > last:
                path.unlink()
            elif number == last and path.suffix == ".bin":
                os.replace(path, self.partial(last))
        with self.partial(last).open("ab") as file:
            num_bytes = self.rows_per_file[-1] * self.length * self.dtype.itemsize
            if file.tell() < num_bytes:
                raise UserError(f"{self.partial(last)} is shorter than it was left; remove the folder and start again")
            file.truncate(num_bytes)

    def append(self, rows: np.ndarray) -> None:
        while len(rows):
            room = self.max_rows - self.rows_per_file[-1]
            if not room:
                self._close()
                self.rows_per_file.append(0)
                continue
            if self.file is None:
                self.file = self.partial(len(self.rows_per_file) - 1).open("ab")
            now = np.ascontiguousarray(rows[:room]).astype(self.dtype.newbyteorder("<"), copy=False)
            self.file.write(now.data)
            self.rows_per_file[-1] += len(now)
            rows = rows[room:]

    def sync(self) -> None:
        if self.file is not None:
            self.file.flush()
            os.fsync(self.file.fileno())

    def _close(self) -> None:
        if self.file is not None:
            self.sync()
            self.file.close()
            self.file = None
        last = len(self.rows_per_file) - 1
        if self.rows_per_file[-1]:
            os.replace(self.partial(last), self.path(last))
        else:
            self.partial(last).unlink(missing_ok=True)

    def finish(self) -> list[dict[str, Any]]:
        """Close the last file; the manifest's entries for all of them."""
        self._close()
        return [
            {"name": self.path(number).name, "rows": rows, "xxh3_128": _hash(self.path(number))}
            for number, rows in enumerate(self.rows_per_file)
            if rows
        ]


@dataclass
class _State:
    """How far we are: what is in the files, and where the next piece starts."""

    after: tuple[int, int]
    counts: Counter[str]
    split_counts: dict[str, Counter[str]]
    notes: Notes
    files: dict[str, list[int]]
    num_seen: int


def _start(out: Path, plan: dict[str, Any], notes: Notes) -> _State:
    """A new state, or the one that was left behind, if it was left by the same settings."""
    if (out / "plan.json").exists():
        _refuse_other(json.loads((out / "plan.json").read_text()), plan, out)
    else:
        _write_json(out / "plan.json", plan)
    if not (out / "progress.json").exists():
        return _State((0, 0), Counter(), {}, notes, {}, 0)
    saved = json.loads((out / "progress.json").read_text())
    console.print(f"Going on after {saved['counts'].get('rows', 0):,} rows.")
    split_counts = {split: Counter(counts) for split, counts in saved["split_counts"].items()}
    return _State(
        tuple(saved["after"]),
        Counter(saved["counts"]),
        split_counts,
        Notes.from_json(saved["notes"]),
        saved["files"],
        saved["num_seen"],
    )


def _save(out: Path, state: _State, writers: dict[str, _Writer], seen_file: BinaryIO) -> None:
    for writer in writers.values():
        writer.sync()
    seen_file.flush()
    os.fsync(seen_file.fileno())
    state.files = {split: writer.rows_per_file for split, writer in writers.items()}
    saved = {**vars(state), "notes": state.notes.as_json()}
    _write_json(out / "progress.json", saved)


def _load_seen(out: Path, num_seen: int) -> np.ndarray:
    path = out / "seen.bin"
    with path.open("ab") as file:
        file.truncate(num_seen * 8)
    return np.fromfile(path, np.uint64)


def _finish(
    config: PrepareConfig, tokenizer: TokenizerFiles, plan: dict[str, Any], state: _State, writers: dict[str, _Writer]
) -> None:
    splits = {}
    for split, writer in writers.items():
        counts = state.split_counts.get(split, Counter())
        splits[split] = {**_counts(counts), "files": writer.finish()}
    manifest = {
        "format": FORMAT,
        "electrakit": __version__,
        "length": config.length,
        "dtype": _dtype(tokenizer),
        "vocab_size": len(tokenizer.vocabulary),
        "special_ids": tokenizer.special_ids,
        "counts": _counts(state.counts),
        "splits": {split: entry for split, entry in splits.items() if entry["rows"]},
        "skipped": state.notes.as_json(),
        "plan": plan,
    }
    _write_json(config.out / "manifest.json", manifest)
    for name in ("plan.json", "progress.json", "seen.bin"):
        (config.out / name).unlink(missing_ok=True)
    print_notes(state.notes)


def _counts(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in ("documents", *COUNTS)}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, also when the machine loses power."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(2**22):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """One process writes a folder; the lock goes with the process, however it ends."""
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing {out}; wait for it, or name another --out") from None
        yield


def _refuse_other(before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    now = json.loads(json.dumps(now))
    if before == now:
        return
    changes = []
    for name in sorted({*before, *now}):
        if before.get(name) == now.get(name):
            continue
        if name == "sources":
            old, new = ({one["name"]: one["bytes"] for one in side["sources"]} for side in (before, now))
            changed = [one for one in sorted({*old, *new}) if old.get(one, "-") != new.get(one, "-")]
            changes.append(
                f"{len(changed)} sources ({changed[0]}: {old.get(changed[0], 'none')} -> {new.get(changed[0], 'none')} bytes)"
                if changed
                else "order of sources"
            )
        else:
            changes.append(f"{name} {before.get(name)} -> {now.get(name)}")
    raise UserError(
        f"{out} was made with other settings: {', '.join(changes)}; name another --out, or remove the folder"
    )

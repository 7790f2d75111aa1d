"""Rows in, a folder of shards out: files that grow, and a notebook beside them that survives a kill at any moment.

Now and then the files are synced, and `progress.json` says how much of them counts; a start after a kill cuts the files
back to that and goes on. `manifest.json` is written last: a folder without it is not finished.
"""

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from electrakit import __version__
from electrakit.config import PrepareConfig
from electrakit.data.batches import FORMAT
from electrakit.data.corpus import Harvest
from electrakit.data.files import Notes
from electrakit.data.rows import COUNTS, Rows
from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.errors import UserError
from electrakit.progress import console

SPLITS = ("train", "valid", "test")
SAVING_TIME = 0.005  # share of the time that saving may take: on most disks, a kill costs a second or two of work


@dataclass
class Built:
    """A piece's documents as rows, and where each document belongs."""

    rows: Rows
    splits: np.ndarray  # of each document: a place in SPLITS
    warnings: list[str]


class ShardFolder:
    """The growing shards, and our notebook about them, which goes when all is done: `plan.json` says what they are made
    of, `progress.json` how much of them counts, `seen.bin` which documents --dedupe has met.
    """

    def __init__(self, config: PrepareConfig, tokenizer: TokenizerFiles, plan: dict[str, Any], notes: Notes) -> None:
        self.config, self.tokenizer, self.plan = config, tokenizer, plan
        self.path = config.out
        self.vocab_size = len(tokenizer.vocabulary)
        self.dtype = "uint16" if self.vocab_size <= 65_535 else "uint32"
        self.after = (0, 0)  # where the next piece starts
        self.notes = notes
        self.counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self.num_seen = 0
        self.next_save = time.monotonic()
        files = self._go_on() or self._begin()
        self.writers = {
            split: _Writer(self.path, split, config.length, np.dtype(self.dtype), config.shard_mb, **files[split])
            for split in SPLITS
        }
        self.seen = self._load_seen() if config.dedupe else None

    @property
    def num_documents(self) -> int:
        return sum(counts["documents"] for counts in self.counts.values())

    @property
    def num_rows(self) -> int:
        return sum(counts["rows"] for counts in self.counts.values())

    def _go_on(self) -> dict[str, Any] | None:
        """Read the notebook that was left behind, if it says anything yet."""
        path = self.path / "progress.json"
        saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if saved is None or not sum(counts.get("rows", 0) for counts in saved["counts"].values()):
            self._check_is_ours(has_notebook=saved is not None)
            return None
        before = json.loads((self.path / "plan.json").read_text(encoding="utf-8"))
        refuse_other(before, {**self.plan, "electrakit": __version__}, self.path)
        self.after = tuple(saved["after"])
        self.notes = Notes.from_json(saved["notes"])
        self.counts = {split: Counter(counts) for split, counts in saved["counts"].items()}
        self.num_seen = saved["num_seen"]
        console.print(f"Going on after {self.num_rows:,} rows.")
        return saved["files"]

    def _check_is_ours(self, has_notebook: bool) -> None:
        """Never overwrite what another program, or another run, has made."""
        foreign = [one.name for split in SPLITS for one in self.path.glob(f"{split}-*.bin*")]
        tokenizer = self.path / "tokenizer"
        if tokenizer.exists() and not self._has_same_tokenizer():
            foreign.append(tokenizer.name)
        if foreign and not has_notebook:
            raise UserError(f"{self.path} holds {sorted(foreign)[0]} of something else; name another --out")

    def _has_same_tokenizer(self) -> bool:
        path = self.path / "tokenizer" / "tokenizer.json"  # the last file of a tokenizer to be written
        try:
            return path.is_file() and load_tokenizer(path).fingerprint == self.tokenizer.fingerprint
        except UserError:
            return False

    def _begin(self) -> dict[str, Any]:
        files: dict[str, Any] = {split: {"finished": [], "num_rows": 0} for split in SPLITS}
        _write_json(self.path / "plan.json", {**self.plan, "electrakit": __version__})
        self._write_notebook(files)  # from now on, what is in the folder is ours
        if not self._has_same_tokenizer():
            self.tokenizer.save(self.path / "tokenizer")
        return files

    def _load_seen(self) -> np.ndarray:
        """Which documents --dedupe has met so far."""
        path = self.path / "seen.bin"
        with path.open("ab") as file:
            file.truncate(8 * self.num_seen)
        self.seen_file = path.open("ab", buffering=0)
        return np.fromfile(path, np.uint64)

    def add(self, piece: Harvest[Built], chosen: np.ndarray) -> None:
        """Append the rows of the chosen documents to their splits, and count them."""
        rows, splits = piece.value.rows, piece.value.splits
        for number, split in enumerate(SPLITS):
            belongs = chosen & (splits == number)
            self.writers[split].append(rows.ids[np.repeat(belongs, rows.counts["rows"])])
            self.counts[split]["documents"] += int(belongs.sum())
            self.counts[split].update({name: int(numbers[belongs].sum()) for name, numbers in rows.counts.items()})
        if self.seen is not None:
            _write(self.seen_file, piece.contents)
            self.num_seen += len(piece.contents)
        self.notes.merge(piece.notes)
        self.after = piece.after
        for warning in piece.value.warnings:
            console.print(warning, style="yellow", markup=False, soft_wrap=True)

    def save_now_and_then(self) -> None:
        if time.monotonic() >= self.next_save:
            self.save()

    def save(self) -> None:
        """From now on, a start after a kill goes on from here."""
        started = time.monotonic()
        for writer in self.writers.values():
            writer.sync()
        if self.seen is not None:
            os.fsync(self.seen_file.fileno())
        self._write_notebook({split: writer.saved() for split, writer in self.writers.items()})
        ended = time.monotonic()
        self.next_save = ended + (ended - started) / SAVING_TIME

    def _write_notebook(self, files: dict[str, Any]) -> None:
        notebook = {
            "after": self.after,
            "counts": self.counts,
            "files": files,
            "notes": self.notes.as_json(),
            "num_seen": self.num_seen,
        }
        _write_json(self.path / "progress.json", notebook)

    def finish(self) -> None:
        """Close the files and write the manifest, which makes them valid."""
        splits = {
            split: {**_in_order(self.counts[split]), "files": writer.finish()} for split, writer in self.writers.items()
        }
        manifest = {
            "format": FORMAT,
            "electrakit": __version__,
            "length": self.config.length,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "special_ids": self.tokenizer.special_ids,
            "counts": _in_order(sum(self.counts.values(), Counter())),
            "splits": {split: entry for split, entry in splits.items() if entry["rows"]},
            "skipped": self.notes.as_json(),
            "plan": self.plan,
        }
        _write_json(self.path / "manifest.json", manifest)
        remove_notebook(self.path)

    def close(self) -> None:
        """Let go of all files as they are."""
        for writer in self.writers.values():
            writer.close()
        if self.seen is not None:
            self.seen_file.close()


class _Writer:
    """Appends rows to one split's files: NAME.bin.partial while it grows, NAME.bin when it is full."""

    def __init__(
        self,
        folder: Path,
        split: str,
        length: int,
        dtype: np.dtype[Any],
        shard_mb: int,
        finished: list[dict[str, Any]],
        num_rows: int,
    ) -> None:
        """`finished` are the manifest's entries of the full files, `num_rows` how much of the next one counts."""
        self.folder, self.split, self.dtype = folder, split, dtype.newbyteorder("<")
        self.finished, self.num_rows = list(finished), num_rows
        self.row_bytes = length * dtype.itemsize
        self.max_rows = max(1, shard_mb * 2**20 // self.row_bytes)
        self._cut_back()
        self.file: BinaryIO | None = None

    @property
    def path(self) -> Path:
        return self.folder / f"{self.split}-{len(self.finished):05d}.bin"

    @property
    def partial(self) -> Path:
        return self.path.with_suffix(".bin.partial")

    def _cut_back(self) -> None:
        """Bring the files to the state that was last saved; what was written after it is made again."""
        kept = {entry["name"]: entry["rows"] * self.row_bytes for entry in self.finished}
        for path in sorted(self.folder.glob(f"{self.split}-*.bin*")):
            if path == self.path:
                path.replace(self.partial)
            elif path.name not in kept and path != self.partial:
                path.unlink()
        with self.partial.open("ab"):
            kept[self.partial.name] = self.num_rows * self.row_bytes
        for name, num_bytes in kept.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size < num_bytes:
                raise UserError(f"{path} is shorter than it was left; remove the folder and start again")
        os.truncate(self.partial, self.num_rows * self.row_bytes)

    def append(self, rows: np.ndarray) -> None:
        while len(rows):
            room = self.max_rows - self.num_rows
            if not room:
                self._end_file()
                continue
            if self.file is None:
                self.file = self.partial.open("ab", buffering=0)
            _write(self.file, rows[:room].astype(self.dtype, copy=False))
            self.num_rows += len(rows[:room])
            rows = rows[room:]

    def sync(self) -> None:
        if self.file is not None:
            os.fsync(self.file.fileno())

    def saved(self) -> dict[str, Any]:
        """What the notebook says about this split."""
        return {"finished": self.finished, "num_rows": self.num_rows}

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    def _end_file(self) -> None:
        """The growing file gets its name and its entry in the manifest; the next one starts with the next row."""
        self.sync()
        self.close()
        if self.num_rows:
            self.partial.replace(self.path)
            entry = {"name": self.path.name, "rows": self.num_rows, "xxh3_128": _hash(self.path)}
            self.finished.append(entry)
            self.num_rows = 0
        else:
            self.partial.unlink(missing_ok=True)

    def finish(self) -> list[dict[str, Any]]:
        """Close the last file; the manifest's entries for all of them."""
        self._end_file()
        return self.finished


# --- small things ----------------------------------------------------------------------------------------------------


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in ("documents", *COUNTS)}


def remove_notebook(out: Path) -> None:
    for name in ("progress.json", "progress.tmp", "plan.json", "plan.tmp", "seen.bin"):
        (out / name).unlink(missing_ok=True)


def _write(file: BinaryIO, numbers: np.ndarray) -> None:
    """All of it, straight to the file: nothing waits in a buffer that a full disk could not take later."""
    rest = np.ascontiguousarray(numbers).data.cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, also when the machine loses power."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
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
def only_writer(out: Path) -> Iterator[None]:
    """One process writes a folder; the lock goes with the process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing {out}; wait for it, or name another --out") from None
        yield


def refuse_other(before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
    if before == now:
        return
    changes = [
        _other_sources(before[name], now[name])
        if name == "sources"
        else f"{name} {before.get(name)} -> {now.get(name)}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    raise UserError(
        f"{out} was made with other settings: {', '.join(changes)}; name another --out, or remove the folder"
    )


def _other_sources(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    old, new = ({one["name"]: one for one in side} for side in (before, now))
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if not changed:
        return "order of sources"
    name = changed[0]
    if name not in old or name not in new:
        what = "is new" if name in new else "is gone"
    elif old[name]["bytes"] != new[name]["bytes"]:
        what = f"{old[name]['bytes']} -> {new[name]['bytes']} bytes"
    else:
        what = "other content"
    return f"{len(changed)} of the sources ({name}: {what})"

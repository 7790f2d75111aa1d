"""Rows in, a folder of shards out: files that grow, and a notebook beside them that survives a kill at any moment.

Now and then the files are synced, and `.prepare/progress.json` says how much of them counts; a start after a kill cuts
the files back to that and goes on. `manifest.json` is written last: a folder without it is not finished.
"""

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electrakit import __version__
from electrakit.config import PrepareConfig
from electrakit.data.batches import FORMAT
from electrakit.data.corpus import Harvest
from electrakit.data.files import Notes
from electrakit.data.plan import SOURCES, Plan, refuse_other
from electrakit.data.rows import COUNTS, Rows
from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.data.writing import NOTEBOOK, SHARD, ShardWriter, write_json, write_numbers
from electrakit.errors import UserError
from electrakit.progress import console
from electrakit.whole import write_whole

SPLITS = ("train", "valid", "test")
SKIPPED = "skipped.jsonl"
TEMPORARY = ("plan.json", "progress.json", "manifest.json", SOURCES, SKIPPED)  # what is written whole
NUM_EXAMPLES = 5  # places of each kind of note in the manifest; skipped.jsonl has more
OURS = re.compile(
    rf"{SHARD.pattern}|manifest\.json|(sources|skipped)\.jsonl|\.lock|tokenizer/(tokenizer\.json|tokenizer_config\.json|vocab\.txt)"
    r"|\.prepare/(plan\.json|progress\.json|seen\.bin|[a-z.]+\.tmp)"
)
SAVING_TIME = 0.005  # share of the time that saving may take: on most disks, a kill costs a second or two of work


@dataclass
class Built:
    """A piece's documents as rows, and where each document belongs."""

    rows: Rows
    splits: np.ndarray  # of each document: a place in SPLITS
    warnings: list[str]


class ShardFolder:
    """The growing shards, and in `.prepare` our notebook about them, which goes when all is done: `plan.json` says what
    they are made of, `progress.json` how much of them counts, `seen.bin` which documents --dedupe has met.
    """

    def __init__(
        self, config: PrepareConfig, tokenizer: TokenizerFiles, plan: Plan, notes: Notes, fast: bool = True
    ) -> None:
        """Goes on where the notebook says; with `fast=False`, from the beginning."""
        self.config, self.tokenizer, self.plan = config, tokenizer, plan
        self.path = config.out
        self.notebook = config.out / NOTEBOOK
        self.fast = fast
        self.vocab_size = len(tokenizer.vocabulary)
        self.dtype = "uint16" if self.vocab_size <= 65_535 else "uint32"
        self.after = (0, 0)  # where the next piece starts
        self.notes = notes
        self.counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self.num_seen = 0
        self.next_save = time.monotonic()
        files = (self._go_on() if fast else None) or self._begin()
        write_whole(self.path / SOURCES, plan.listed, self.notebook)
        self.writers = {
            split: ShardWriter(self.path, split, config.length, np.dtype(self.dtype), config.shard_mb, **files[split])
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
        saved = self._read("progress.json")
        if saved is None:
            self._check_is_ours()
            return None
        with self._damage_is_told("progress.json"):
            counts = {split: Counter[str](saved["counts"][split]) for split in SPLITS}
            after, notes, fast = _two_numbers(saved["after"]), Notes.from_json(saved["notes"]), bool(saved["fast"])
            num_seen = int(saved["num_seen"])
            files = {split: _file_state(saved["files"][split]) for split in SPLITS}
            if not sum(number["rows"] for number in counts.values()):
                return None
        before = self._read("plan.json")
        refuse_other(before or {}, {**self.plan.entry, "electrakit": __version__}, self.plan, self.path)
        if self.plan.read_once:
            raise UserError(
                f"{self.path} is unfinished, and what {self.plan.read_once[0]} (standard input, or a pipe) said before "
                "cannot be read again; remove the folder and start again, or name another --out"
            )
        self.after, self.notes, self.counts, self.num_seen, self.fast = after, notes, counts, num_seen, fast
        console.print(f"Going on after {self.num_rows:,} rows.")
        return files

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.notebook / name
        if not path.exists():
            return None
        with self._damage_is_told(name):
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise TypeError(f"a {type(content).__name__}")
        return content

    @contextlib.contextmanager
    def _damage_is_told(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{self.notebook / name} is damaged, or not ours ({error}); "
                "remove the folder and start again, or name another --out"
            ) from None

    def _check_is_ours(self) -> None:
        """Never overwrite what another program, or another run, has made."""
        lists = (SOURCES, SKIPPED)
        foreign = [one.name for one in self.path.iterdir() if SHARD.fullmatch(one.name) or one.name in lists]
        tokenizer = self.path / "tokenizer"
        if tokenizer.exists() and not has_tokenizer(self.path, self.tokenizer):
            foreign.append(tokenizer.name)
        if foreign:
            raise UserError(f"{self.path} holds {sorted(foreign)[0]} of something else; name another --out")

    def _begin(self) -> dict[str, Any]:
        files: dict[str, Any] = {split: {"finished": [], "num_rows": 0} for split in SPLITS}
        self.after, self.num_seen = (0, 0), 0
        self.notebook.mkdir(exist_ok=True)
        write_json(self.notebook / "plan.json", {**self.plan.entry, "electrakit": __version__}, self.notebook)
        self._write_notebook(files)  # from now on, what is in the folder is ours
        if not has_tokenizer(self.path, self.tokenizer):
            self.tokenizer.for_length(self.config.length).save(self.path / "tokenizer")
        return files

    def _load_seen(self) -> np.ndarray:
        """Which documents --dedupe has met so far."""
        path = self.notebook / "seen.bin"
        with path.open("ab") as file:
            if file.tell() < 8 * self.num_seen:
                raise UserError(f"{path} is shorter than it was left; remove the folder and start again")
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
            write_numbers(self.seen_file, piece.contents)
            self.num_seen += len(piece.contents)
        self.notes.merge(piece.notes)
        self.after = piece.after

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
            "fast": self.fast,  # a run without tokie goes on without it
            "counts": self.counts,
            "files": files,
            "notes": self.notes.as_json(),
            "num_seen": self.num_seen,
        }
        write_json(self.notebook / "progress.json", notebook, self.notebook)

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
            "skipped": self.notes.as_json(NUM_EXAMPLES),
            "plan": self.plan.entry,
        }
        if self.notes.counts:
            write_whole(self.path / SKIPPED, _listed(self.notes), self.notebook)
        write_json(self.path / "manifest.json", manifest, self.notebook)
        remove_notebook(self.path)

    def close(self) -> None:
        """Let go of all files as they are."""
        for writer in self.writers.values():
            writer.close()
        if self.seen is not None:
            self.seen_file.close()


# --- small things ----------------------------------------------------------------------------------------------------


def _in_order(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in ("documents", *COUNTS)}


def _listed(notes: Notes) -> bytes:
    """skipped.jsonl: what was met, and where, a line for each place."""
    lines = (
        json.dumps({"what": what, "where": where}, ensure_ascii=False) + "\n"
        for what, places in notes.examples.items()
        for where in places
    )
    return "".join(lines).encode("utf-8", "replace")


def has_tokenizer(out: Path, wanted: TokenizerFiles) -> bool:
    """Whether this very tokenizer lies beside the shards."""
    path = out / "tokenizer" / "tokenizer.json"  # the last file of a tokenizer to be written
    try:
        return path.is_file() and load_tokenizer(path).fingerprint == wanted.fingerprint
    except UserError:
        return False


def has_notebook(out: Path) -> bool:
    return (out / NOTEBOOK / "progress.json").exists()


def remove_notebook(out: Path) -> None:
    for name in ("plan.json", "seen.bin", *(f"{one}.tmp" for one in TEMPORARY), "progress.json"):
        (out / NOTEBOOK / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something that is not ours may be in it
        (out / NOTEBOOK).rmdir()


def is_ours(path: str | None, out: Path) -> bool:
    """Whether a source is a file that we write: the folder may lie in the corpus, and text may lie in the folder."""
    if path is None:
        return False
    place, folder = Path(path).absolute(), out.absolute()
    return place.is_relative_to(folder) and OURS.fullmatch(place.relative_to(folder).as_posix()) is not None


def _two_numbers(pair: list[int]) -> tuple[int, int]:
    first, second = pair
    return int(first), int(second)


def _file_state(saved: dict[str, Any]) -> dict[str, Any]:
    finished = [
        {"name": str(one["name"]), "rows": int(one["rows"]), "xxh3_128": one["xxh3_128"]} for one in saved["finished"]
    ]
    return {"finished": finished, "num_rows": int(saved["num_rows"])}

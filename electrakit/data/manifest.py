"""The manifest of a shards folder: reads and checks manifest.json, and records all that decides the shards' bytes."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_file, hash_text
from electrakit.common.progress import progress
from electrakit.config.base import read_fields
from electrakit.config.corpus import SHARDS_MANIFEST, SHARDS_SOURCES, SHARDS_TOKENIZER, PrepareConfig
from electrakit.data.read import docstrings
from electrakit.data.read.sources import CorpusInput
from electrakit.data.rows import DocumentCounts
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer

SHARDS_FORMAT = 1  # of manifest.json
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
REQUIRED_KEYS = ("length", "dtype", "vocab_size", "special_ids", "splits")
PREPARE_AGAIN = "copy the folder again, or remove it and run electra prepare again"
MIN_BYTES_FOR_A_BAR = 2**30  # hashing runs at the speed of the disk: below this it takes a moment


# --- manifest.json ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardFile:
    """A full shard file, and the hash of its content."""

    name: str
    rows: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True)
class ManifestSplit(DocumentCounts):
    """The counts of one split, and its files."""

    files: list[ShardFile] = field(default_factory=list)


@dataclass(frozen=True)
class SourcesSummary:
    """All sources together."""

    files: int = 0
    bytes: int = 0
    xxh3_128: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json: what the shards hold. Its fields are the file's keys, in the file's order."""

    format: int = SHARDS_FORMAT
    electrakit: str | None = None  # the version that made them
    length: int
    dtype: str
    vocab_size: int
    special_ids: dict[str, int]
    counts: DocumentCounts | None = None  # of all splits together
    splits: dict[str, ManifestSplit]
    skipped: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)  # `Plan.entry`: compared key by key with that of the next call

    @property
    def num_rows(self) -> dict[str, int]:
        """Of each split."""
        return {name: split.rows for name, split in self.splits.items()}

    @property
    def tokenizer_fingerprint(self) -> str | None:
        return self.plan.get("tokenizer")

    @property
    def valid_share(self) -> float:
        """Of the documents, as it was asked for."""
        return self.plan["valid"]

    @property
    def sources(self) -> SourcesSummary:
        return read_fields(SourcesSummary, self.plan.get("sources", {}))


def read_manifest(folder: Path) -> Manifest:
    """manifest.json of a shards folder, known to be complete and of our format."""
    path = folder / SHARDS_MANIFEST
    if not folder.is_dir():
        raise UserError(f"no shards folder {folder}: make it with electra prepare, or correct the path")
    if not path.is_file():
        raise UserError(
            f"{folder} has no {SHARDS_MANIFEST}, so it is unfinished: run electra prepare again to finish it"
        )
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): {PREPARE_AGAIN}") from None
    found = stored.get("format") if isinstance(stored, dict) else None
    if found != SHARDS_FORMAT:
        raise UserError(f"{path} has format {found!r}, we read {SHARDS_FORMAT}: update electrakit, or prepare again")
    if missing := [key for key in REQUIRED_KEYS if key not in stored]:
        raise UserError(f"{path} lacks {', '.join(missing)}: {PREPARE_AGAIN}")
    if stored["dtype"] not in DTYPES:
        raise UserError(f"{path} has dtype {stored['dtype']!r}, known are {', '.join(DTYPES)}: {PREPARE_AGAIN}")
    try:
        known = {one.name: stored[one.name] for one in fields(Manifest) if one.name in stored}
        known["splits"] = {
            name: ManifestSplit.of(entry, files=[ShardFile(**file) for file in entry.get("files", ())])
            for name, entry in stored["splits"].items()
        }
        if "counts" in stored:
            known["counts"] = DocumentCounts.of(stored["counts"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}): {PREPARE_AGAIN}") from None
    return Manifest(**known)


def files_of_split(folder: Path, manifest: Manifest, split: str) -> list[ShardFile]:
    """The files of the split that have rows, each present and of the size that the manifest names."""
    if split not in manifest.splits:
        names = ", ".join(manifest.splits) or "(it has none)"
        raise UserError(f"{folder} has no split {split!r}: choose one of {names}")
    expected_rows = manifest.splits[split].rows
    files = [file for file in manifest.splits[split].files if file.rows]
    num_rows = sum(file.rows for file in files)
    if num_rows != expected_rows:
        difference = f"split {split!r} has {expected_rows} rows, its files {num_rows}"
        raise UserError(f"{folder / SHARDS_MANIFEST} is damaged ({difference}): {PREPARE_AGAIN}")
    if not files:
        raise UserError(f"split {split!r} of {folder} has 0 rows: prepare more text, or a larger part for this split")
    for file in files:
        path = folder / file.name
        if not path.is_file():
            raise UserError(f"{path} is missing: {PREPARE_AGAIN}")
        size, wanted = path.stat().st_size, file.rows * manifest.length * DTYPES[manifest.dtype].itemsize
        if size != wanted:
            what = "truncated" if size < wanted else "too long"
            raise UserError(f"{path} is {what} ({size} bytes, the manifest says {wanted}): {PREPARE_AGAIN}")
    return files


def check_files(folder: Path, manifest: Manifest) -> int:
    """Compare every file of every split with the manifest, byte for byte; the number of rows in all of them."""
    files = [file for split in manifest.splits for file in files_of_split(folder, manifest, split)]
    num_bytes = [(folder / file.name).stat().st_size for file in files]
    with progress("checking shards", sum(num_bytes), silent_below=MIN_BYTES_FOR_A_BAR) as update:
        for file, done in zip(files, accumulate(num_bytes), strict=True):
            check_hash(folder, file)
            update(done)
    return sum(file.rows for file in files)


def check_hash(folder: Path, file: ShardFile) -> None:
    found = hash_file(folder / file.name)
    if found != file.xxh3_128:
        difference = f"xxh3_128 {found}, the manifest says {file.xxh3_128}"
        raise UserError(f"{folder / file.name} is damaged ({difference}): {PREPARE_AGAIN}")


# --- the plan: what decides the shards' bytes ------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    """A line of sources.jsonl: one input as it was when the work began."""

    name: str
    bytes: int | None
    xxh3_128: str | None  # of the content; None for what can be read only once, or cannot be read
    stamp: list[int] | None  # size, two times, inode and device: while these are the same, so is the content

    @property
    def identity(self) -> tuple[Any, ...]:
        """What must be equal for equal shards. The content, and of the path only what can decide a file's kind: its last part,
        and whether it lies in a folder of books. What has no content to compare is known by its full name."""
        if self.xxh3_128 is None:
            return self.name, self.bytes, None
        is_among_books = "gutenberg" in str(Path(self.name).parent).lower()
        return Path(self.name).name, self.bytes, self.xxh3_128, is_among_books


@dataclass(frozen=True)
class Plan:
    """What decides the shards' bytes."""

    entry: dict[str, Any]  # as it stands in the manifest
    sources: list[SourceFile]
    read_once: list[str]  # the names of the sources that cannot be read again: standard input and pipes
    tokenizer: str = ""  # what it is, for people to read

    def refuse_changed(self, inputs: list[CorpusInput], out: Path) -> None:
        """A source that changed while it was read gave rows that belong to no version of it."""
        for before, now in zip(self.sources, _fingerprint_sources(inputs, self.sources), strict=True):
            if before.identity != now.identity:
                raise UserError(
                    f"{before.name} changed while it was read; remove {out} and start again when the sources stay as they are"
                )

    def refuse_other(self, before: dict[str, Any], now: dict[str, Any], out: Path) -> None:
        """Raise an error that names the differences, if there are any: such a folder is neither resumed nor finished."""
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if not names:
            return
        what = f"{out} was made with other settings"
        if names == ["sources"]:
            what = f"the sources have changed since {out} was made"
        special = {"sources": self._other_sources, "tokenizer": self._other_tokenizer}
        changes = ", ".join(
            special[name](out) if name in special else f"{name} {before.get(name)} -> {now.get(name)}" for name in names
        )
        raise UserError(f"{what}: {changes}; name another --out, or move the folder away")

    def _other_tokenizer(self, out: Path) -> str:
        """Which tokenizer the folder was made with, and which it is now: their fingerprints would tell a reader nothing."""
        try:
            before = load_tokenizer(out / SHARDS_TOKENIZER).summary
        except UserError:
            before = "another"
        if before == self.tokenizer:
            before = f"another {before}"
        return f"tokenizer {before} -> {self.tokenizer}"

    def _other_sources(self, out: Path) -> str:
        """How many sources changed, and how the first of them did."""
        listed = _read_sources(out)
        if not listed:
            return "other sources"
        before, now = {one.identity for one in listed}, {one.identity for one in self.sources}
        old = {one.name: one for one in listed if one.identity not in now}
        new = {one.name: one for one in self.sources if one.identity not in before}
        if not old and not new:
            return "order or number of sources"
        name = min({*old, *new})
        if name not in old:
            what = "is new"
        elif name not in new:
            what = "is gone"
        elif old[name].bytes != new[name].bytes:
            what = f"{old[name].bytes} -> {new[name].bytes} bytes"
        else:
            what = "other content"
        return f"{len({*old, *new})} of the sources ({name}: {what})"


def make_plan(config: PrepareConfig, tokenizer: TokenizerFiles, inputs: list[CorpusInput]) -> Plan:
    """All that decides the shards' bytes; reads each source, unless `config.out` knows it and it has not been touched."""
    settings = {name: value for name, value in config.identity().items() if name not in ("inputs", "tokenizer")}
    sources = _fingerprint_sources(inputs, _read_sources(config.out))
    num_bytes, digest = sum(one.bytes or 0 for one in sources), hash_text(json.dumps([one.identity for one in sources]))
    summary = asdict(SourcesSummary(len(sources), num_bytes, digest))
    read_once = [one.name for one in inputs if one.name == "-" or (one.path and not Path(one.path).is_file())]
    return Plan(
        {**settings, "tokenizer": tokenizer.fingerprint, "sources": summary}, sources, read_once, tokenizer.summary
    )


# --- what is in the sources ------------------------------------------------------------------------------------------


def _read_sources(out: Path) -> list[SourceFile]:
    """Those of an earlier start on this folder; none if there was none, or the list is damaged."""
    try:
        lines = (out / SHARDS_SOURCES).read_text(encoding="utf-8").splitlines()
        return [SourceFile(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError):
        return []


def _fingerprint_sources(inputs: list[CorpusInput], earlier: list[SourceFile]) -> list[SourceFile]:
    """Every source with the hash of its content, which is read unless one of `earlier` has the same stamp."""
    known = {tuple(one.stamp): one.xxh3_128 for one in earlier if one.stamp}
    stamps = [_stamp(one) for one in inputs]
    hashes = [known.get(tuple(stamp)) if stamp else None for stamp in stamps]
    total = sum(one.num_bytes or 0 for one, digest in zip(inputs, hashes, strict=True) if digest is None)
    num_done = 0
    with progress("checking sources", total, silent_below=MIN_BYTES_FOR_A_BAR) as update:

        def add(num_bytes: int) -> None:
            nonlocal num_done
            num_done += num_bytes
            update(num_done)

        return [
            SourceFile(
                one.name if one.path is None else str(Path(one.path).absolute()),
                stamp[0] if stamp else one.num_bytes,
                digest or _hash(one, add),
                stamp,
            )
            for one, stamp, digest in zip(inputs, stamps, hashes, strict=True)
        ]


def _stamp(one: CorpusInput) -> list[int] | None:
    """What changes when a file is written, touched or replaced; ctime cannot be set back."""
    if one.path is None or not Path(one.path).is_file():
        return None
    try:
        status = Path(one.path).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _hash(one: CorpusInput, add: Callable[[int], None]) -> str | None:
    """Of every byte of a source that can be read more than once: a file, a builtin corpus, a dataset's folder."""
    if one.path is not None:
        return _hash_file(Path(one.path), add) if Path(one.path).is_file() else None
    names = ""
    paths: list[Path] = []
    if one.name == "builtin:python":
        paths = docstrings.python_files()
    elif one.name.startswith("hf:"):
        folder = Path(one.name.removeprefix("hf:").partition(":")[0])
        paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        names = "".join(path.relative_to(folder).as_posix() + "\n" for path in paths)  # they decide the split
    found = [digest for path in paths if (digest := _hash_file(path, add))]
    return hash_text(names + "".join(found)) if found else None


def _hash_file(path: Path, add: Callable[[int], None]) -> str | None:
    """As `xxh128sum` prints it; None if it cannot be read."""
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
                add(len(chunk))
    except OSError:
        return None
    return digest.hexdigest()

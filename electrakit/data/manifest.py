"""The manifest of a shards folder: reads and checks manifest.json, and records all that decides the shards' bytes.

A source file is known by its content: every byte is hashed once, before it is read. A file that still has the same size,
times and inode is not hashed again; one that was touched, copied or moved is, and counts as the same if its hash is the same.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_file
from electrakit.common.progress import progress
from electrakit.config.corpus import SHARDS_MANIFEST, PrepareConfig
from electrakit.data.read import docstrings
from electrakit.data.read.sources import CorpusInput
from electrakit.data.rows import COUNTS, DocumentCounts
from electrakit.data.tokenizer_files import TokenizerFiles

FORMAT = 1  # of manifest.json
DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
REQUIRED_KEYS = ("length", "dtype", "vocab_size", "special_ids", "splits")
PREPARE_AGAIN = "copy the folder again, or remove it and run electra prepare again"
SOURCES = "sources.jsonl"
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

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        files = [ShardFile(file["name"], file["rows"], file["xxh3_128"]) for file in stored.get("files", ())]
        return cls(**_counts(stored), files=files)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json: what the shards hold. Its fields are the file's keys, in the file's order."""

    format: int = FORMAT
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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


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
    if found != FORMAT:
        raise UserError(f"{path} has format {found!r}, we read {FORMAT}: update electrakit, or prepare again")
    if missing := [key for key in REQUIRED_KEYS if key not in stored]:
        raise UserError(f"{path} lacks {', '.join(missing)}: {PREPARE_AGAIN}")
    if stored["dtype"] not in DTYPES:
        raise UserError(f"{path} has dtype {stored['dtype']!r}, known are {', '.join(DTYPES)}: {PREPARE_AGAIN}")
    try:
        known = {one.name: stored[one.name] for one in fields(Manifest) if one.name in stored}
        known["splits"] = {name: ManifestSplit.from_json(entry) for name, entry in stored["splits"].items()}
        if "counts" in stored:
            known["counts"] = DocumentCounts(**_counts(stored["counts"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error!r}): {PREPARE_AGAIN}") from None
    return Manifest(**known)


def _counts(stored: dict[str, Any]) -> dict[str, int]:
    return {name: stored[name] for name in COUNTS if name in stored}


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
    def identity(self) -> list[Any]:
        """What must be equal for equal shards. The content, and of the path only what can decide a file's kind: its last part,
        and whether it lies in a folder of books. What has no content to compare is known by its full name."""
        if self.xxh3_128 is None:
            return [self.name, self.bytes, None]
        is_among_books = "gutenberg" in str(Path(self.name).parent).lower()
        return [Path(self.name).name, self.bytes, self.xxh3_128, is_among_books]


@dataclass(frozen=True)
class Plan:
    """What decides the shards' bytes."""

    entry: dict[str, Any]  # as it stands in the manifest
    sources: list[SourceFile]
    read_once: list[str]  # the names of the sources that cannot be read again: standard input and pipes

    @property
    def sources_jsonl(self) -> bytes:
        return "".join(json.dumps(asdict(one)) + "\n" for one in self.sources).encode()


def make_plan(config: PrepareConfig, tokenizer: TokenizerFiles, inputs: list[CorpusInput]) -> Plan:
    """All that decides the shards' bytes; reads each source, unless `config.out` knows it and it has not been touched."""
    settings = {name: value for name, value in config.identity().items() if name not in ("inputs", "tokenizer")}
    sources = _fingerprint_sources(inputs, _known_hashes(config.out))
    summary = {
        "files": len(sources),
        "bytes": sum(one.bytes or 0 for one in sources),
        "xxh3_128": xxhash.xxh3_128_hexdigest(json.dumps([one.identity for one in sources]).encode()),
    }
    entry = {**settings, "tokenizer": tokenizer.fingerprint, "sources": summary}
    read_once = [one.name for one in inputs if _can_be_read_only_once(one)]
    return Plan(json.loads(json.dumps(entry, allow_nan=False)), sources, read_once)  # as it will be read again


def refuse_changed(plan: Plan, inputs: list[CorpusInput], out: Path) -> None:
    """A source that changed while it was read gave rows that belong to no version of it."""
    known = {tuple(one.stamp): one.xxh3_128 for one in plan.sources if one.stamp}
    for before, now in zip(plan.sources, _fingerprint_sources(inputs, known), strict=True):
        if before.identity != now.identity:
            raise UserError(
                f"{before.name} changed while it was read; remove {out} and start again when the sources stay as they are"
            )


def refuse_other(before: dict[str, Any], now: dict[str, Any], plan: Plan, out: Path) -> None:
    """Raise an error that names the differences, if there are any: such a folder is neither resumed nor finished."""
    if before == now:
        return
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    changes = ", ".join(
        _other_sources(out, plan) if name == "sources" else f"{name} {before.get(name)} -> {now.get(name)}"
        for name in names
    )
    what = (
        f"the sources have changed since {out} was made"
        if names == ["sources"]
        else f"{out} was made with other settings"
    )
    raise UserError(f"{what}: {changes}; name another --out, or remove the folder")


def _other_sources(out: Path, plan: Plan) -> str:
    """How many sources changed, and how the first of them did."""
    try:
        listed = _read_sources(out)
    except (OSError, ValueError, TypeError, KeyError):
        return "other sources"
    sides = []
    for ours, others in ((listed, plan.sources), (plan.sources, listed)):
        there = {tuple(one.identity) for one in others}
        sides.append({one.name: one for one in ours if tuple(one.identity) not in there})
    old, new = sides
    if not old and not new:
        return "order or number of sources"
    name = min({*old, *new})
    if name not in old or name not in new:
        what = "is new" if name in new else "is gone"
    elif old[name].bytes != new[name].bytes:
        what = f"{old[name].bytes} -> {new[name].bytes} bytes"
    else:
        what = "other content"
    return f"{len({*old, *new})} of the sources ({name}: {what})"


# --- what is in the sources ------------------------------------------------------------------------------------------

KnownHashes = dict[tuple[int, ...], str | None]  # stamp -> hash of the content


def _known_hashes(out: Path) -> KnownHashes:
    """The hashes of an earlier start on this folder."""
    try:
        return {tuple(one.stamp): one.xxh3_128 for one in _read_sources(out) if one.stamp}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _read_sources(out: Path) -> list[SourceFile]:
    lines = (out / SOURCES).read_text(encoding="utf-8").splitlines()
    return [SourceFile(**json.loads(line)) for line in lines]


def _fingerprint_sources(inputs: list[CorpusInput], known: KnownHashes) -> list[SourceFile]:
    stamps = [_stamp(one) for one in inputs]
    to_read = [stamp is None or tuple(stamp) not in known for stamp in stamps]
    total = sum(one.num_bytes or 0 for one, is_read in zip(inputs, to_read, strict=True) if is_read)
    sources = []
    num_done = 0
    with progress("checking sources", total, silent_below=MIN_BYTES_FOR_A_BAR) as update:

        def add(num_bytes: int) -> None:
            nonlocal num_done
            num_done += num_bytes
            update(num_done)

        for one, stamp, is_read in zip(inputs, stamps, to_read, strict=True):
            digest = _hash(one, add) if is_read or stamp is None else known[tuple(stamp)]
            name = one.name if one.path is None else str(Path(one.path).absolute())
            sources.append(SourceFile(name, stamp[0] if stamp else one.num_bytes, digest, stamp))
    return sources


def _stamp(one: CorpusInput) -> list[int] | None:
    """What changes when a file is written, touched or replaced; ctime cannot be set back."""
    if one.path is None or _can_be_read_only_once(one):
        return None
    try:
        status = Path(one.path).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _hash(one: CorpusInput, add: Callable[[int], None]) -> str | None:
    """Of every byte of a source that can be read more than once: a file, a builtin corpus, a dataset's folder."""
    names = ""
    if one.name == "builtin:python":
        paths = docstrings.python_files()
    elif one.path is None and one.name.startswith("hf:"):
        folder = Path(one.name.removeprefix("hf:").partition(":")[0])
        paths = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        names = "".join(path.relative_to(folder).as_posix() + "\n" for path in paths)  # they decide the split
    elif one.path is None or _can_be_read_only_once(one):
        paths = []
    else:
        paths = [Path(one.path)]
    found = [digest for digest in (_hash_file(path, add) for path in paths) if digest]
    if len(found) == 1 and not names:
        return found[0]
    return xxhash.xxh3_128_hexdigest((names + "".join(found)).encode()) if found else None


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


def _can_be_read_only_once(one: CorpusInput) -> bool:
    return one.name == "-" or (one.path is not None and not Path(one.path).is_file())

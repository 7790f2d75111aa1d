"""Settings and sources in, a plan out: all that decides the shards' bytes, so that any change of it is noticed.

A source is known by its whole content: every byte is hashed once, before it is read. A file that still has the same size,
times and inode as then is not hashed again; one that was touched, copied or moved is, and counts as the same if it is.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash

from electrakit.config import PrepareConfig
from electrakit.data import docstrings
from electrakit.data.sources import Input
from electrakit.data.tokenizer import TokenizerFiles
from electrakit.errors import UserError
from electrakit.progress import progress

SOURCES = "sources.jsonl"
BYTES_WORTH_A_BAR = 2**30  # hashing runs at the speed of the disk: below this it takes a moment


@dataclass(frozen=True)
class Source:
    """A line of sources.jsonl: one input as it was when the work began."""

    name: str
    bytes: int | None
    xxh3_128: str | None  # of the whole content; None for what can be read only once, or not at all
    stamp: list[int] | None  # size, two times, inode and device: while they stay, so does the content

    @property
    def identity(self) -> list[Any]:
        """What must agree for the same shards. A file's own name can decide its kind, and so can a folder of books; where else it
        lies does not matter. What has no content that could be compared is known by its whole name."""
        if self.xxh3_128 is None:
            return [self.name, self.bytes, None]
        is_among_books = "gutenberg" in str(Path(self.name).parent).lower()
        return [Path(self.name).name, self.bytes, self.xxh3_128, is_among_books]


@dataclass(frozen=True)
class Plan:
    """What decides the shards' bytes."""

    entry: dict[str, Any]  # as it stands in the manifest
    sources: list[Source]
    read_once: list[str]  # the names of the sources that cannot be read again: standard input and pipes

    @property
    def listed(self) -> bytes:
        """sources.jsonl."""
        return "".join(json.dumps(asdict(one)) + "\n" for one in self.sources).encode()


def make_plan(config: PrepareConfig, tokenizer: TokenizerFiles, inputs: list[Input]) -> Plan:
    """All that decides the shards' bytes; reads each source, unless `config.out` knows it and it has not been touched."""
    settings = {name: value for name, value in config.identity().items() if name not in ("inputs", "tokenizer")}
    sources = _look_at(inputs, _known(config.out))
    summary = {
        "files": len(sources),
        "bytes": sum(one.bytes or 0 for one in sources),
        "xxh3_128": xxhash.xxh3_128_hexdigest(json.dumps([one.identity for one in sources]).encode()),
    }
    entry = {**settings, "tokenizer": tokenizer.fingerprint, "sources": summary}
    read_once = [one.name for one in inputs if _can_be_read_only_once(one)]
    return Plan(json.loads(json.dumps(entry, allow_nan=False)), sources, read_once)  # as it will be read again


def refuse_changed(plan: Plan, inputs: list[Input], out: Path) -> None:
    """A source that changed while it was read has given rows that belong to no version of it."""
    known = {tuple(one.stamp): one.xxh3_128 for one in plan.sources if one.stamp}
    for before, now in zip(plan.sources, _look_at(inputs, known), strict=True):
        if before.identity != now.identity:
            raise UserError(
                f"{before.name} changed while it was read; remove {out} and start again when the sources stay as they are"
            )


def refuse_other(before: dict[str, Any], now: dict[str, Any], plan: Plan, out: Path) -> None:
    """Refuse to go on, or to call it finished, with the differences named."""
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

Known = dict[tuple[int, ...], str | None]  # stamp -> hash of the content


def _known(out: Path) -> Known:
    """The hashes of an earlier start on this folder."""
    try:
        return {tuple(one.stamp): one.xxh3_128 for one in _read_sources(out) if one.stamp}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _read_sources(out: Path) -> list[Source]:
    lines = (out / SOURCES).read_text(encoding="utf-8").splitlines()
    return [Source(**json.loads(line)) for line in lines]


def _look_at(inputs: list[Input], known: Known) -> list[Source]:
    stamps = [_stamp(one) for one in inputs]
    to_read = [stamp is None or tuple(stamp) not in known for stamp in stamps]
    total = sum(one.num_bytes or 0 for one, is_read in zip(inputs, to_read, strict=True) if is_read)
    sources = []
    num_done = 0
    with progress("checking sources", total, silent_below=BYTES_WORTH_A_BAR) as update:

        def add(num_bytes: int) -> None:
            nonlocal num_done
            num_done += num_bytes
            update(num_done)

        for one, stamp, is_read in zip(inputs, stamps, to_read, strict=True):
            digest = _hash(one, add) if is_read or stamp is None else known[tuple(stamp)]
            name = one.name if one.path is None else str(Path(one.path).absolute())
            sources.append(Source(name, stamp[0] if stamp else one.num_bytes, digest, stamp))
    return sources


def _stamp(one: Input) -> list[int] | None:
    """What changes when a file is written, touched or replaced; nobody can set the time of its last change."""
    if one.path is None or _can_be_read_only_once(one):
        return None
    try:
        status = Path(one.path).stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def _hash(one: Input, add: Callable[[int], None]) -> str | None:
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
    found = [digest for digest in (_hash_of_file(path, add) for path in paths) if digest]
    if len(found) == 1 and not names:
        return found[0]
    return xxhash.xxh3_128_hexdigest((names + "".join(found)).encode()) if found else None


def _hash_of_file(path: Path, add: Callable[[int], None]) -> str | None:
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


def _can_be_read_only_once(one: Input) -> bool:
    return one.name == "-" or (one.path is not None and not Path(one.path).is_file())

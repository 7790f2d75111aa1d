"""Which files and folders are ours: what we did not write is never changed or removed, and an input is never inside an output.

A folder of ours has a marker, electrakit.json, with its kind. There are two sorts:

- a work folder, such as a run: files come one by one, and a restart resumes. The marker lists the names that are ours, each
  from the moment before it is written. Files of others may lie beside them.
- a whole folder, such as an exported model: it is written under a hidden name and then replaces the older one. The marker has
  a hash of each file; files of others inside the older one are refused, or carried over.

A single file, such as a report, is recognised by its content.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from electrakit import __version__
from electrakit.common.atomic import allow_reading, atomic_folder, atomic_write, hidden_names
from electrakit.common.errors import UserError
from electrakit.common.hashing import hash_file
from electrakit.common.json_files import write_json
from electrakit.common.lock import LOCK_FILE
from electrakit.common.move_folder import link_or_copy
from electrakit.common.progress import console

MARKER = "electrakit.json"
MARKER_FORMAT = 1
# Kinds of folders, as messages name them.
KINDS = {
    "run": "a run",
    "shards": "shards",
    "finetune": "results of electra finetune",
    "glue": "results of electra glue",
    "search": "results of electra search",
    "predictions": "predictions",
    "tokenizer": "a tokenizer",
    "export": "an export",
    "converted": "a converted model",
    "model": "a fine-tuned model",
}
# Folders inside runs, shards and models that are parts of these: no output goes there.
PARTS = {"checkpoints", "tensorboard", "discriminator", "generator", "onnx", "tokenizer", ".prepare"}
HEAD_BYTES = 4096  # of a file, to recognise it by

AnyPath = str | os.PathLike[str]


# The marker


def read_marker(folder: Path) -> dict[str, Any] | None:
    """What the marker of a folder says; None if it has none. A file of this name that is not ours is an error."""
    path = folder / MARKER
    if not os.path.lexists(path):
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # Exports of earlier versions name no kind, but the run's identity.
        kind = "export" if "identity" in content else str(content["kind"])
        version, files, names = int(content["format"]), dict(content.get("files", {})), list(content.get("names", []))
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} was not written by electrakit; name another folder, or move it away") from None
    if version > MARKER_FORMAT:
        raise UserError(
            f"{path} has format {version}, we read {MARKER_FORMAT}: update electrakit, or name another folder"
        )
    return {**content, "kind": kind, "files": files, "names": list(map(str, names))}


def write_marker(folder: Path, kind: str, **content: Any) -> None:
    about = {"format": MARKER_FORMAT, "electrakit": __version__, "kind": kind}
    write_json(folder / MARKER, about | content, ascii_only=True)


def require_kind(folder: Path, kind: str, flag: str) -> dict[str, Any] | None:
    """The marker; that of a folder of another kind is an error."""
    marker = read_marker(folder)
    if marker is not None and marker["kind"] != kind:
        what = KINDS.get(marker["kind"], f"{marker['kind']!r}")
        raise UserError(f"{flag} {folder} holds {what}, and would hold {KINDS[kind]} too; name another {flag}")
    return marker


# Work folders


@dataclass(frozen=True)
class WorkFolder:
    """A folder whose files come one by one. Call `require_ours` before anything is written, and `begin` under the lock. Then use
    `write`, or call `own` right before something else writes under a name.
    """

    path: Path
    kind: str
    names: tuple[str, ...]
    """What may be written at its top, as patterns."""
    flag: str = "--out"
    is_older: Callable[[Path], bool] = lambda path: False
    """Recognises a folder of a version that wrote no marker, by its content."""

    def require_ours(self) -> None:
        """Refuse a folder that has something under one of our names that we did not write. Writes nothing."""
        require_kind(self.path, self.kind, self.flag)
        known = self._known()
        for path in self._there():
            if path.name not in known:
                self._refuse(path)

    def begin(self) -> None:
        """The same, when the folder is locked; and forget names whose files are gone: another may put files there."""
        self.require_ours()
        known = {name for name in self._known() if _holds_something(self.path / name)}
        if known or read_marker(self.path) is not None:
            self._write(known)

    def own(self, *names: str) -> None:
        """From now on these names are ours. Call it right before they are written, not earlier: until then another may."""
        known = self._known()
        for name in names:
            if name not in known and _holds_something(self.path / name):
                self._refuse(self.path / name)
        if not known.issuperset(names) or not (self.path / MARKER).exists():
            self._write(known | set(names))

    def write(self, name: str, content: Any) -> None:
        """Bytes as they are, anything else as JSON."""
        self.own(name)
        write = atomic_write if isinstance(content, bytes) else write_json
        write(self.path / name, content)

    def remove(self, name: str) -> None:
        """A file of ours. Then the name is free for others."""
        known = self._known()
        if name in known:
            (self.path / name).unlink(missing_ok=True)
            self._write(known - {name})

    def _there(self) -> list[Path]:
        """What is there under one of our names, and may be lost."""
        return [path for path in _entries(self.path) if self._is_name(path.name) and _holds_something(path)]

    def _is_name(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names)

    def _known(self) -> set[str]:
        """The names that are ours."""
        marker = read_marker(self.path)
        if marker is not None:
            return set(marker["names"])
        return {path.name for path in self._there()} if self.is_older(self.path) else set()

    def _write(self, names: set[str]) -> None:
        marker = read_marker(self.path)
        if marker is None or marker["names"] != sorted(names):
            write_marker(self.path, self.kind, names=sorted(names))

    def _refuse(self, path: Path) -> None:
        raise UserError(
            f"{path} was not written by electrakit as part of {KINDS[self.kind]}, and would be overwritten; "
            f"name another {self.flag}, or move it away"
        )


def _holds_something(path: Path) -> bool:
    """An empty folder may be used: it may be a link to a larger disk."""
    return os.path.lexists(path) and not (path.is_dir() and not _entries(path))


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


# Whole folders


@contextlib.contextmanager
def whole_folder(
    out: Path,
    kind: str,
    *,
    inputs: Iterable[AnyPath | None] = (),
    overwrite: bool = False,
    refresh: bool = False,
    flag: str = "--out",
    is_older: Callable[[Path], bool] = lambda folder: False,
) -> Iterator[Path]:
    """Yields a hidden folder that takes the place of `out` if the block ends well, with a marker; until then the old one stays.

    overwrite: an older one of ours is replaced; files in it that are not ours, or were changed, are kept.
    refresh: an older one of ours is replaced if it has no such files.
    is_older: recognises a folder of a version that wrote no marker, by its content. What the new one does not have is kept.
    """
    require_apart(out, inputs, flag)
    require_replaceable(out, kind, overwrite=overwrite, refresh=refresh, flag=flag, is_older=is_older)
    _require_hidden_ours(out, kind, flag, is_older)
    with atomic_folder(out) as folder:
        yield folder
        allow_reading(folder)
        if not (folder / MARKER).exists():
            mark_whole(folder, kind)
        # Again: the work may have taken minutes.
        require_replaceable(out, kind, overwrite=overwrite, refresh=refresh, flag=flag, is_older=is_older)
        _carry_over(out, folder)


def mark_whole(folder: Path, kind: str, **about: Any) -> None:
    """Write the marker of a finished whole folder, with a hash of every file."""
    files = {name: hash_file(folder / name) for name in files_of(folder) if name != MARKER}
    write_marker(folder, kind, **about, files=files)


def require_replaceable(
    out: Path,
    kind: str,
    *,
    overwrite: bool = False,
    refresh: bool = False,
    flag: str = "--out",
    is_older: Callable[[Path], bool] = lambda folder: False,
) -> None:
    """Refuse a folder that has anything but an older output of the same kind."""
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir():
        raise UserError(f"{flag} {out} is a file; name another {flag}, or move it away")
    if require_kind(out, kind, flag) is None and not is_older(out):
        first = min(path.name for path in out.iterdir())
        raise UserError(
            f"{flag} {out} is not empty, and not {KINDS[kind]} of electra: it already exists, with {first}; "
            f"name another {flag}, or move it away"
        )
    if overwrite:
        return
    if not refresh:
        raise UserError(f"{out} already holds {KINDS[kind]}; name another {flag}, or add --overwrite")
    for name, what in foreign_files(out).items():
        raise UserError(
            f"{flag} {out}: {name} {what}, and would be lost; move it away, name another {flag}, "
            "or add --overwrite, which keeps it"
        )


def foreign_files(folder: Path) -> dict[str, str]:
    """The files in a whole folder that are not as we wrote them, and what is the matter with each."""
    marker = read_marker(folder)
    hashes = {} if marker is None else marker["files"]
    found = {}
    for name in files_of(folder):
        if name == MARKER:
            continue
        if name not in hashes:
            found[name] = "was not written by us"
        elif not is_regular(folder / name) or hashes[name] != hash_file(folder / name):
            found[name] = "was changed by hand"
    return found


def files_of(folder: Path) -> list[str]:
    """All files, and links to anything."""
    paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return [path.relative_to(folder).as_posix() for path in paths]


def is_regular(path: Path) -> bool:
    """Whether it is a file: no link, nor a pipe, which has no end."""
    return path.is_file() and not path.is_symlink()


def _carry_over(old: Path, new: Path) -> None:
    """Files of others in the old folder are in the new one, too; if that name is taken, under another one."""
    if not old.is_dir():
        return
    same = {name for name in files_of(old) if _is_same(old / name, new / name)}
    for name in (name for name in foreign_files(old) if name not in same):
        target = new / name
        for parent in reversed(Path(name).parents[:-1]):  # a folder of theirs where we have a file
            if os.path.lexists(new / parent) and not (new / parent).is_dir():
                target = new / name.replace("/", ".")
        if os.path.lexists(target):
            target = free_name(target)
            message = f"{old}: {name} was not as we wrote it, and is kept as {target.relative_to(new)}"
            console.print(message, style="yellow", markup=False, soft_wrap=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(old / name, target)


def _is_same(one: Path, other: Path) -> bool:
    return is_regular(one) and other.is_file() and hash_file(one) == hash_file(other)


def remove_whole(folder: Path, kind: str) -> None:
    """Remove an output of ours; files of others in it, and a folder that is not ours, stay."""
    try:
        marker = read_marker(folder)
        if marker is None or marker["kind"] != kind:
            return
        foreign = foreign_files(folder)
        if not foreign:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for name in files_of(folder):  # not the names in the marker, which may be anywhere
            if name not in foreign and name != MARKER:
                (folder / name).unlink()
        (folder / MARKER).unlink()
    except (OSError, UserError):
        return  # to keep too much loses nothing


def _require_hidden_ours(out: Path, kind: str, flag: str, is_older: Callable[[Path], bool]) -> None:
    """The hidden names beside `out` that `atomic_folder` cleans up may hold only what it leaves there."""
    unfinished, replaced = hidden_names(out.resolve())
    names = {path.name for path in _entries(unfinished)}
    has_lock = not names or LOCK_FILE in names  # which comes first
    is_unfinished = has_lock and all(name == "folder" or name.startswith(LOCK_FILE) for name in names)
    is_replaced = not _entries(replaced) or require_kind(replaced, kind, flag) is not None or is_older(replaced)
    for path, is_ours in ((unfinished, is_unfinished), (replaced, is_replaced)):
        if os.path.lexists(path) and not (is_ours and path.is_dir() and not path.is_symlink()):
            raise UserError(
                f"{path} was not written by electrakit, and would be lost; move it away, or name another {flag}"
            )


# Single files


def require_free_file(
    path: Path, is_ours: Callable[[bytes], bool], what: str, *, overwrite: bool = False, way_out: str = "--overwrite"
) -> None:
    """Refuse a file that we did not write. is_ours: recognises what we write by its first bytes. what: its name in messages."""
    if overwrite or not os.path.lexists(path) or is_our_file(path, is_ours):
        return
    raise UserError(
        f"{path} already exists, and cannot be told to be {what} of electra; name another --out, or add {way_out}, "
        f"which keeps it as {free_name(path).name}"
    )


def is_our_file(path: Path, is_ours: Callable[[bytes], bool]) -> bool:
    try:
        with path.open("rb") as file:
            return is_ours(file.read(HEAD_BYTES))
    except OSError:
        return False


def make_way(
    path: Path, is_ours: Callable[[bytes], bool], what: str, *, overwrite: bool = False, way_out: str = "--overwrite"
) -> Path:
    """Right before a file is written: where to write it. With `overwrite` a file that may be another's is renamed, never removed."""
    require_free_file(path, is_ours, what, overwrite=overwrite, way_out=way_out)
    if os.path.lexists(path) and not is_our_file(path, is_ours):
        set_aside(path)
    return path.resolve()  # a link keeps pointing to the same place


def set_aside(path: Path) -> Path:
    """Rename a file or folder: predictions.tsv becomes predictions.1.tsv, or the next number that is free."""
    kept = free_name(path)
    path.rename(kept)
    console.print(f"{path} is kept as {kept.name}", style="yellow", markup=False, soft_wrap=True)
    return kept


def free_name(path: Path) -> Path:
    numbered = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in range(1, 1_000_000))
    return next(each for each in numbered if not os.path.lexists(each))


# Inputs


def require_apart(
    out: Path, inputs: Iterable[AnyPath | None], flag: str = "--out", *, may_be_inside: bool = True
) -> None:
    """Refuse an output that is one of the inputs, or that has one inside. Links are followed.

    may_be_inside: the output may lie in a folder that is an input, such as runs/mine/glue, but not in a part of it.
    """
    for source in (Path(name) for name in inputs if name is not None):
        if not source.exists():  # a name on the hub
            continue
        if out.exists() and source.samefile(out):
            raise UserError(f"{flag} {out} is also the input; name another {flag}")
        if _is_inside(source, out):
            raise UserError(f"{flag} {out} holds the input {source}, which could be lost; name another {flag}")
        if _is_inside(out, source):
            part = out.resolve().relative_to(source.resolve()).parts[0]
            if not may_be_inside:
                raise UserError(f"{flag} {out} is inside the input {source}, which stays as it is; name another {flag}")
            if part in PARTS:
                raise UserError(f"{flag} {out} is inside {source / part}, a part of the input; name another {flag}")


def _is_inside(path: Path, folder: Path) -> bool:
    return folder.resolve() in path.resolve().parents

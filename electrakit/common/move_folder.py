"""Moves and removes folders where the file system makes that hard: in layers of container images, and on NFS.

A folder of an image's layer cannot be renamed (EXDEV on overlayfs). It is copied file by file, compared, and only then removed. A small
file beside the target, the journal, says how far that is, so that the next start can finish what a kill interrupted.
"""

import contextlib
import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from electrakit.common.hashing import hash_file
from electrakit.common.sync import sync
from electrakit.common.temporary import temporary_file

CANNOT_RENAME = {errno.EXDEV}
LAST_FILES = ("manifest.json",)
"""What makes a folder valid: a copy gets it last."""
JOURNAL_SUFFIX = ".moving"
NUM_TRIES = 3  # of removing a folder: NFS keeps a file that was open for a moment, under the name .nfs…


def move_folder(source: Path, target: Path) -> None:
    """Rename, or where that is not possible: copy, compare, then remove the source. The target does not exist."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in CANNOT_RENAME:
            raise
        from electrakit.common.progress import say_once

        say_once(
            f"folders cannot be renamed in {target.parent} ({error.strerror}): they are copied, which takes longer and twice the space"
        )
        copy_and_remove(source, target)


def copy_and_remove(source: Path, target: Path) -> None:
    journal = journal_of(target)
    assert is_moved_to(os.path.relpath(source, target.parent), target.name), (source, target)
    for path in (target, journal):
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    paths = sorted(source.rglob("*"), key=lambda path: (path.name in LAST_FILES, path))
    is_folder = {path: path.is_dir() and not path.is_symlink() for path in paths}
    entry: dict[str, Any] = {
        "source": os.path.relpath(source, journal.parent),
        "files": [path.relative_to(source).as_posix() for path in paths if not is_folder[path]],
        "folders": [path.relative_to(source).as_posix() for path in paths if is_folder[path]],
        "is_copied": False,
    }
    write_journal(journal, entry)
    try:
        target.mkdir()
        for name in entry["folders"]:
            (target / name).mkdir(parents=True)
        for name in entry["files"]:
            copy_file(source / name, target / name)
        shutil.copystat(source, target)
        write_journal(journal, {**entry, "is_copied": True})
    except BaseException:
        finish_move(target)
        raise
    finish_move(target)


def copy_file(source: Path, target: Path) -> None:
    """Its bytes, on the disk and compared."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    with target.open("xb") as file, source.open("rb") as content:
        shutil.copyfileobj(content, file, 2**20)
    shutil.copystat(source, target)
    sync(target)
    if hash_file(target) != hash_file(source):
        raise OSError(errno.EIO, "the copy is not what was read", str(target))


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """By a hard link where the file system has them. A link stays a link."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def finish_move(target: Path) -> None:
    """Remove the source of a copy that is whole, and what is there of one that was interrupted."""
    journal = journal_of(target)
    entry = read_journal(journal, target.name)
    if entry is None:
        return
    folder = target.parent.resolve()
    source, target = folder / entry["source"], folder / target.name
    whole, done = (target, source) if entry["is_copied"] else (source, target)
    for name in entry["files"]:
        if is_inside(done / name, done) and is_part_of(done / name, whole / name):
            (done / name).unlink()
    for name in [*reversed(entry["folders"]), ""]:
        if is_inside(done / name, done):
            with contextlib.suppress(OSError):  # it is gone, or has something that is not ours
                (done / name).rmdir()
    journal.unlink(missing_ok=True)


def is_moved_to(source: str, target: str) -> bool:
    """Whether we move a folder from this name beside the target: a downloaded journal may have any."""
    hidden = (f".{target}", f".{target}.replaced", f".{target}.unfinished/folder")
    return source in hidden or target == f".{source}.replaced"


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder, without links and `..` on the way."""
    return path.is_relative_to(folder) and path.parent.resolve() == path.parent


def is_part_of(copy: Path, whole: Path) -> bool:
    """Whether a file has the bytes of another one, all of them or the first: one with other bytes was not written by a copy."""
    if copy.is_symlink() or whole.is_symlink():
        return copy.is_symlink() and whole.is_symlink() and copy.readlink() == whole.readlink()
    if not copy.is_file() or not whole.is_file():
        return False
    with copy.open("rb") as first, whole.open("rb") as second:
        while block := first.read(2**20):
            if second.read(len(block)) != block:
                return False
    return True


def journal_of(target: Path) -> Path:
    return target.with_name(f".{target.name.removeprefix('.')}{JOURNAL_SUFFIX}")


def read_journal(path: Path, target: str) -> dict[str, Any] | None:
    """What we wrote there; None if nothing is there, or something else."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(entry, dict) or entry.keys() != {"source", "files", "folders", "is_copied"}:
        return None
    return entry if is_moved_to(entry["source"], target) else None


def write_journal(path: Path, entry: dict[str, Any]) -> None:
    content = json.dumps(entry).encode()
    with temporary_file(path.with_name(f"{path.name}.tmp"), content) as temporary:
        temporary.write_bytes(content)
        sync(temporary)
        temporary.replace(path)


def remove_folder(path: Path) -> bool:
    """Whether it is gone. A network file system may keep files that were open for a moment: that is tried again, and never an error."""
    for number in range(NUM_TRIES):
        if path.is_symlink() or not path.exists():
            return not path.is_symlink()
        if number:
            time.sleep(0.1)
        shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)

"""Atomic writes of files and folders: after a crash or a power cut there is the old content or the new, never a part."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.lock import write_lock as write_lock
from electrakit.common.move_folder import finish_move, move_folder, remove_folder
from electrakit.common.sync import sync
from electrakit.common.temporary import temporary_file


def atomic_write(path: Path, content: bytes, scratch: Path | None = None) -> None:
    """Write a file. It grows in the folder `scratch`, which is ours, or beside its place under a hidden name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = temporary_file(path.with_name(f".{path.name}.tmp"), content)
    with contextlib.nullcontext(scratch / f"{path.name}.tmp") if scratch else beside as temporary:
        try:
            temporary.write_bytes(content)
            sync(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync(path.parent)


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yields a folder beside `out` that takes its place if the block ends well; until then the old content stays.

    The caller makes sure that the old content may go. Of two processes with the same `out`, the second one is refused.
    """
    from safetensors import SafetensorError

    place = out.resolve()  # a link keeps pointing to the same place
    if Path.cwd().is_relative_to(place):
        raise UserError(f"--out {out} is a folder that you are in, and would be replaced; name one inside it")
    unfinished, replaced = hidden_names(place)
    try:
        with explain_write_errors(out, "close other programs"), write_lock(unfinished):
            try:
                _clean(place, unfinished, replaced)  # after a kill
                folder = unfinished / "folder"
                folder.mkdir()
                yield folder
                put_folder(folder, place, replaced)
                remove_folder(replaced)
            finally:
                _put_back(place, replaced)
                shutil.rmtree(unfinished, ignore_errors=True)
    except SafetensorError as error:  # how it reports a full disk
        raise UserError(f"cannot write {out}: {error}; make room and start the same command again") from None


def hidden_names(place: Path) -> tuple[Path, Path]:
    """Where the new folder grows, beside the lock, and where the old one is until the new one is in its place."""
    return place.with_name(f".{place.name}.unfinished"), place.with_name(f".{place.name}.replaced")


def _clean(place: Path, unfinished: Path, replaced: Path) -> None:
    """Remove what a kill left. What may be the user's is set aside."""
    from electrakit.common.ownership import foreign_files, set_aside

    _put_back(place, replaced)
    remove_folder(unfinished / "folder")
    if replaced.is_dir() and foreign_files(replaced):
        set_aside(replaced)
    else:
        remove_folder(replaced)


def _put_back(place: Path, replaced: Path) -> None:
    """The old content is in its place again if `put_folder` was stopped between its two moves."""
    for target in (place, replaced):
        finish_move(target)
    if replaced.exists() and not place.exists():
        move_folder(replaced, place)


def put_folder(folder: Path, place: Path, replaced: Path) -> None:
    """Move a finished folder to its place, and the one that was there to `replaced`."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            sync(path)
    if place.exists():
        move_folder(place, replaced)
    move_folder(folder, place)
    sync(place.parent)


def allow_reading(folder: Path) -> None:
    """safetensors writes files that only their owner may read; give them the rights of any other new file. All of them are ours."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o666 & ~umask)

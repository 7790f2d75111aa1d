"""A place in, a file or a folder there out: whole and on the disk, or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from electrakit.errors import UserError, mended_by_user
from electrakit.locks import only_writer


def write_whole(path: Path, content: bytes, scratch: Path | None = None) -> None:
    """Whole or not at all, also when the machine loses power. It grows in the folder `scratch`, or beside its place under a hidden name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp") if scratch is None else scratch / f"{path.name}.tmp"
    try:
        temporary.write_bytes(content)
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextlib.contextmanager
def whole_or_nothing(out: Path) -> Iterator[Path]:
    """A folder beside `out`, which takes its place when all is well; until then, what was there is there.

    Whoever calls this has made sure that what was there may go. Of two processes with the same `out`, the second one is refused.
    """
    from safetensors import SafetensorError

    place = out.resolve()  # a link goes on naming the same place
    if Path.cwd().is_relative_to(place):
        raise UserError(f"--out {out} is a folder that you are in, and would be replaced; name one inside it")
    unfinished, replaced = (place.with_name(f".{place.name}.{what}") for what in ("unfinished", "replaced"))
    try:
        with mended_by_user(out, "close other programs"), only_writer(unfinished):
            try:
                _clean(place, unfinished, replaced)  # after a kill
                folder = unfinished / "folder"
                folder.mkdir()
                yield folder
                allow_reading(folder)
                for path in (*folder.rglob("*"), folder):
                    sync(path)
                if place.exists():
                    place.rename(replaced)
                folder.rename(place)
                sync(place.parent)
            finally:
                _clean(place, unfinished, replaced)
                shutil.rmtree(unfinished, ignore_errors=True)
    except SafetensorError as error:  # how it says that a disk is full
        raise UserError(f"cannot write {out}: {error}; make room and start the same command again") from None


def _clean(place: Path, unfinished: Path, replaced: Path) -> None:
    """Remove what is left over; what was there before goes back, if a kill came between two renames."""
    if replaced.exists() and not place.exists():
        replaced.rename(place)
    for leftover in (unfinished / "folder", replaced):
        shutil.rmtree(leftover, ignore_errors=True)


def allow_reading(folder: Path) -> None:
    """safetensors writes files for their owner alone; they get the rights of any other new file."""
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o666 & ~umask)


def sync(path: Path) -> None:
    """Down to the disk, a file or a folder's list of names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

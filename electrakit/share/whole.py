"""A folder's place in, a folder to write into out: it takes that place when everything in it is on the disk, or leaves no trace."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from electrakit.data.writing import sync
from electrakit.errors import UserError, mended_by_user
from electrakit.locks import only_writer


@contextlib.contextmanager
def whole_or_nothing(out: Path) -> Iterator[Path]:
    """A folder beside `out`, which takes its place when all is well; until then, what was there is there.

    Whoever calls this has made sure that what was there may go. Of two processes with the same `out`, the second one is refused.
    """
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

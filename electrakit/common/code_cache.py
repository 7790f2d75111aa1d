"""A recipe in, a loaded library out: compiled code, kept for the user's next process where no other user can change it.

A file of the cache is the library and, as its last bytes, a hash of it. It is opened once, without following a link; its owner and rights,
and those of every folder above it, are checked; and the very bytes that were checked are loaded, from memory. Where anything does not
fit, the code is compiled again. Where no folder is safe, it is compiled for this process alone.
"""

import atexit
import contextlib
import ctypes
import grp
import hashlib
import itertools
import os
import pwd
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MARK = b"electrakit sha256 "
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_num_loaded = itertools.count()
UNUSED_DAYS = 30  # after which a library that no process loaded is removed
BUILD_DAYS = 1  # after which what a killed compiler left is removed


def load_library(prefix: str, recipe: str, build: Callable[[Path], None]) -> ctypes.CDLL:
    """The library that `build(path)` writes, compiled before or now. `recipe`: all that decides its bytes."""
    from electrakit.common.progress import say_once

    name = f"{prefix}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    folder = cache_folder()
    danger = find_danger(folder, must_make=True)
    if danger is None:
        content = read_checked(folder / name)
        if content is not None:
            with contextlib.suppress(OSError):  # of another machine that shares the folder
                return load_bytes(content)
    else:
        say_once(f"compiled code is not kept for the next start: {danger}")
    can_store = danger is None and os.access(folder, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder if can_store else None) as place:
        made = Path(place) / name
        require_safe(Path(place))
        build(made)
        content = made.read_bytes()
        library = load_bytes(content)
        if can_store:
            store(made, content, folder / name)
            remove_old(folder, prefix)
    return library


def cache_folder() -> Path:
    """The folder for files that can be made again."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given) / "electrakit"
    try:
        return Path.home() / ".cache" / "electrakit"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"electrakit-{os.getuid()}"


def safe_folder(folder: Path) -> Path:
    """The folder, made if need be; where other users could put code into it, a new one for this process alone."""
    if find_danger(folder, must_make=True) is None:
        return folder
    private = Path(tempfile.mkdtemp(prefix="electrakit-"))
    require_safe(private)
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private


# Who may change a file


def find_danger(folder: Path, *, must_make: bool = False) -> str | None:
    """Why code in this folder may be another user's; None if only this user, or root, can write there."""
    try:
        if must_make:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_uid != os.getuid():
            return f"{folder} belongs to another user"
        # As it is written, whose links others must not be able to change, and as it is.
        for place in (folder.absolute(), folder.resolve()):
            for part in (place, *place.parents):
                if danger := danger_of(part, part.stat(), is_parent=part != place):
                    return danger
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


def require_safe(folder: Path) -> None:
    """Refuse a folder for temporary files that others could replace."""
    if danger := find_danger(folder):
        raise OSError(f"{danger}: set TMPDIR or XDG_CACHE_HOME to a folder that only you can write to")


def danger_of(path: Path, about: os.stat_result, *, is_parent: bool) -> str | None:
    # The owner of / can change everything. It is root, also in a container that root is no user of, where root has another number. There
    # other users may have that number too, but the cache itself must belong to this user.
    if about.st_uid not in (os.getuid(), 0, Path("/").stat().st_uid):
        return f"{path} belongs to another user"
    if not about.st_mode & WRITABLE_BY_OTHERS:
        return None
    if is_parent and about.st_mode & stat.S_ISVTX:  # sticky, as /tmp: users can remove and rename only their own files
        return None
    if not about.st_mode & stat.S_IWOTH and is_private_group(about.st_gid):
        return None
    return f"others may write in {path}"


def is_private_group(group: int) -> bool:
    """Whether it is the group of this user alone, as many systems make one: of the same name, and without members."""
    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


# Files


def read_checked(path: Path) -> bytes | None:
    """The bytes of a library that this user stored, as they were stored; None for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & WRITABLE_BY_OTHERS:
            return None
        with open(handle, "rb", closefd=False) as file:
            content = file.read()
        with contextlib.suppress(OSError):
            os.utime(handle)  # it was used
    except OSError:
        return None
    finally:
        os.close(handle)
    library, mark, found = content.rpartition(MARK)
    is_whole = bool(mark) and found == hashlib.sha256(library).hexdigest().encode()
    return library if is_whole else None


def store(made: Path, content: bytes, path: Path) -> None:
    """Atomically, also when several processes store at once. If it cannot be stored, the next process compiles again."""
    with contextlib.suppress(OSError):
        whole = made.with_suffix(".stored")
        whole.write_bytes(content + MARK + hashlib.sha256(content).hexdigest().encode())
        whole.chmod(0o600)
        with contextlib.suppress(OSError):
            path.rmdir()  # an empty folder of that name
        whole.replace(path)


def remove_old(folder: Path, prefix: str) -> None:
    """What no process has used for a month, and what killed compilers left."""
    for pattern, days in ((f"{prefix}-*.so", UNUSED_DAYS), ("build-*", BUILD_DAYS)):
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):
                about = path.lstat()
                if about.st_uid == os.getuid() and time.time() - about.st_mtime > days * 86400:
                    shutil.rmtree(path) if stat.S_ISDIR(about.st_mode) else path.unlink()


# Loading


def load_bytes(content: bytes) -> ctypes.CDLL:
    """These bytes and no others: they cannot be changed or cut between the check and the load, nor later.

    From a file in memory; where the system has none, or runs no code from it, from a private folder.
    """
    with contextlib.suppress(AttributeError, OSError):
        handle = os.memfd_create("electrakit-library", os.MFD_CLOEXEC)
        try:
            place = Path(f"/proc/self/fd/{handle}")
            place.write_bytes(content)
            # The system knows a library by its path: one of an earlier call, whose number is free again, needs another.
            return ctypes.CDLL(f"/proc/self/fd/{'./' * next(_num_loaded)}{handle}")
        finally:
            os.close(handle)
    with tempfile.TemporaryDirectory(prefix="electrakit-") as folder:
        require_safe(Path(folder))
        path = Path(folder) / "library.so"
        path.write_bytes(content)
        return ctypes.CDLL(str(path))

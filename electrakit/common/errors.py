"""The exception for errors that the user can fix, and helpers for its message."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
PATH_ERRORS = {
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENOENT, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
}
RESOURCE_ERRORS = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}
OS_ERROR_OF_RUST = re.compile(r"\(os error ([0-9]+)\)")
# What messages of torch, CUDA, C++ and Python's threads say.
NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc", "can't start new thread")


class UserError(ValueError):
    """Bad input or settings. The message names the thing, its value and the way out.

    The command line prints it as one line and exits with code 2; any other exception is a bug and keeps its traceback.
    """


def one_line(error: BaseException, max_chars: int = 300) -> str:
    """An exception's message as one line; its type where it has no message."""
    return " ".join(str(error).split())[:max_chars] or type(error).__name__


def first_line(error: BaseException, max_chars: int = 300) -> str:
    """The first line of a message whose other lines are details."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:max_chars]


@contextlib.contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Put a prefix, such as the name of a file, before the message of a UserError."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}{error}") from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the system, or a GPU, has no more memory. torch has several exceptions for that, all of them RuntimeErrors."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)
    )


def of_system(error: Exception) -> Exception:
    """The OSError that tokenizers, which is in Rust, reports as a plain Exception; any other error as it is."""
    found = OS_ERROR_OF_RUST.search(str(error)) if type(error) is Exception else None
    return error if found is None else OSError(int(found[1]), os.strerror(int(found[1])))


@contextlib.contextmanager
def explain_write_errors(
    out: Path, remedy: str = "use fewer --workers", *, runs_users_code: bool = False
) -> Iterator[None]:
    """While `out` is written: turn a full disk, a read-only folder and the like into a UserError.

    remedy: what to do when there are too many processes or open files.
    runs_users_code: a file elsewhere that is missing or may not be opened is a bug of that code.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # not about the folder: the reader of our output has gone
    except Exception as error:
        problem = of_system(error)
        if not isinstance(problem, OSError):
            raise
        if runs_users_code and problem.errno in PATH_ERRORS and not is_about(problem, out):
            raise
        if problem.errno in DISK_ERRORS | PATH_ERRORS:
            what, way_out = f"cannot write {problem.filename or out}: {problem.strerror}", "fix that and start"
        elif problem.errno in RESOURCE_ERRORS:
            what, way_out = f"stopped by the system: {problem.strerror}", f"{remedy} and start"
        else:
            what, way_out = f"stopped by the system: {problem}", "fix that and start"
        raise UserError(f"{what}; {way_out} the same command again") from None


def is_about(error: OSError, folder: Path) -> bool:
    """Whether the file of an error is in this folder, as far as it says."""
    name = error.filename
    return not isinstance(name, str | bytes) or Path(os.fsdecode(name)).resolve().is_relative_to(folder.resolve())

"""The one exception that means: the user can mend this."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


class UserError(ValueError):
    """Bad input or settings. The message names the thing, its value and the way out.

    The command line prints it as one line and exits with code 2; any other exception is a bug and keeps its traceback.
    """


@contextlib.contextmanager
def mended_by_user(out: Path) -> Iterator[None]:
    """While `out` is written: a full disk, or a folder that may not be written, is the user's to mend."""
    try:
        yield
    except BrokenPipeError:
        raise  # not about the folder: whoever read our messages has gone
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename or out}: {error.strerror}; mend that and start the same command again"
        ) from None

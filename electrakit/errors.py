"""The one exception that means: the user can mend this."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

_NAMES = "ENOSPC EDQUOT EFBIG EROFS EACCES EPERM ENOTDIR EISDIR ENOENT EEXIST ENAMETOOLONG ELOOP"
OF_THE_FOLDER = {getattr(errno, name) for name in _NAMES.split()}
OF_TOO_MANY_PROCESSES = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM}


class UserError(ValueError):
    """Bad input or settings. The message names the thing, its value and the way out.

    The command line prints it as one line and exits with code 2; any other exception is a bug and keeps its traceback.
    """


@contextlib.contextmanager
def mended_by_user(out: Path, relief: str = "use fewer --workers") -> Iterator[None]:
    """While `out` is written: a full disk, or a folder that may not be written, is the user's to mend.

    relief: what helps where there are too many processes or files.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # not about the folder: whoever read our messages has gone
    except OSError as error:
        if error.errno in OF_THE_FOLDER:
            what, way_out = f"cannot write {error.filename or out}: {error.strerror}", "mend that and start"
        elif error.errno in OF_TOO_MANY_PROCESSES:
            what, way_out = f"stopped by the system: {error.strerror}", f"{relief} and start"
        else:
            what, way_out = f"stopped by the system: {error}", "mend that and start"
        raise UserError(f"{what}; {way_out} the same command again") from None

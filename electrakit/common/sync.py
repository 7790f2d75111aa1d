"""Brings a file, or a folder's list of names, to the disk."""

import errno
import os
from pathlib import Path

# What fsync gives where a file system does not have it, for folders or at all: SMB, vboxsf, some of FUSE.
NO_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_open(handle, path)
    finally:
        os.close(handle)


def sync_open(handle: int, path: Path) -> None:
    """One that is open. Where the file system cannot, only a power cut would show it: that is said once, and the work goes on."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
        from electrakit.common.progress import say_once

        what = "folders" if path.is_dir() else "files"
        say_once(
            f"the file system cannot flush {what} ({error.strerror}): after a power cut the last writes may be missing"
        )

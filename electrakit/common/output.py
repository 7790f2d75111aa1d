"""Messages in, standard error out: a terminal that was closed, a reader that has gone or a full disk never ends the work."""

import contextlib
import io
import os
import sys
from typing import Any

UNWRITABLE = (OSError, ValueError)
"""What writing raises when the other end has gone (EPIPE, EIO), the disk is full (ENOSPC), or the file object is closed."""


class MessageFile:
    """Standard error, whatever `sys.stderr` is at that moment. What cannot be written is dropped; the next message is tried again."""

    @property
    def target(self) -> Any:
        return getattr(
            sys.stderr, "rich_proxied_file", sys.stderr
        )  # rich replaces sys.stderr while it shows a live line

    def write(self, text: str) -> int:
        with contextlib.suppress(*UNWRITABLE):
            if self.target is not None:
                self.target.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(*UNWRITABLE):
            if self.target is not None:
                self.target.flush()

    def isatty(self) -> bool:
        try:
            return self.target is not None and self.target.isatty()
        except UNWRITABLE:
            return False

    def fileno(self) -> int:
        return self.target.fileno()


def print_error(text: str) -> None:
    """A line on standard error, if it can be written."""
    file = MessageFile()
    file.write(f"{text}\n")
    file.flush()


def open_missing_files() -> None:
    """Give a process that was started without standard input, output or error an empty one.

    Otherwise the next file that is opened, a shard or a checkpoint, gets the number of standard error, and what a library writes there
    lands in it.
    """
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(handle, True)
    os.close(handle)


def allow_any_text() -> None:
    """Write what the encoding of standard output lacks as \\x and a number: no message ends the work."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as Python sets standard error


def end_output() -> None:
    """Write what is still buffered, or drop it: otherwise Python, at its end, replaces the exit code by 120."""
    for file in (sys.stdout, sys.stderr):
        try:
            if file is not None:
                file.flush()
        except UNWRITABLE:
            with contextlib.suppress(*UNWRITABLE):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, file.fileno())
                os.close(nowhere)

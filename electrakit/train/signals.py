"""Turns SIGTERM, SIGINT and SIGUSR1 into a request: the run finishes its step, saves and stops."""

import signal
import threading
from types import FrameType
from typing import Any, Self

# SIGUSR1 is what Slurm jobs are commonly sent before their time is up.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Interrupts:
    """While it is open, these signals only set `stop_requested`, however often they come."""

    def __init__(self) -> None:
        self.stop_requested = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            self.before = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True

    def ignore(self) -> None:
        """Ignore the signals from now on, also while the interpreter shuts down: for a process that is about to exit."""
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

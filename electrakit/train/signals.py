"""SIGTERM, SIGINT or SIGUSR1 in, a flag out: a run that is asked to stop saves and leaves at the end of its step."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

# the last is what Slurm is told to send before the time is up
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Interrupts:
    """While it is open, these signals only set `asked`, however often they come."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # nobody else can
            self.before = {number: signal.signal(number, self.note) for number in SIGNALS}
        return self

    @property
    def is_asked(self) -> bool:
        return self.asked is not None

    def note(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number).name

    def ignore(self) -> None:
        """From now on, and while the interpreter is taken down too: for a process that has nothing more to do than to leave."""
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

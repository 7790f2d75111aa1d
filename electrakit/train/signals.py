"""Turns the signals that ask a process to end into a request: the run finishes its step, saves and stops."""

import math
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

# SIGHUP: the terminal was closed. SIGUSR1 and SIGUSR2: what Slurm and other queues are told to send before the time is up. SIGXCPU and
# SIGALRM: a limit of the CPU's time or of a timer.
SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM),
)

ALWAYS_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SECONDS_TO_LEAVE = 10.0  # after which another signal is tried, if the first had no effect


def signals_to_handle() -> list[signal.Signals]:
    """All but those that are ignored, as SIGHUP is under nohup, or that the program around us handles itself, such as its own timer."""
    return [number for number in SIGNALS if number in ALWAYS_HANDLED or is_free(signal.getsignal(number))]


def is_free(handler: Any) -> bool:
    return handler == signal.SIG_DFL or getattr(handler, "__module__", None) == __name__


class Interrupts:
    """While it is open, these signals only set `stop_requested`, however often they come."""

    def __init__(self) -> None:
        self.stop_requested = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            self.before = {number: signal.signal(number, self.note) for number in signals_to_handle()}
        return self

    def note(self, number: int, frame: FrameType | None) -> None:
        self.stop_requested = True

    def ignore(self) -> None:
        """Ignore the signals from now on, also while the interpreter shuts down: for a process that is about to exit."""
        for number in self.before:
            signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            if handler is not None:  # of a program in C around us: Python cannot install it again
                signal.signal(number, handler)


class StoppedBySignal(SystemExit):
    """Raised by the signals of a verb that has nothing to save: it leaves tidily, with the exit code of a shell."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


class Leaving:
    """The first of the signals raises StoppedBySignal, Ctrl-C raises KeyboardInterrupt. Code in C may turn either into another exception,
    or drop it: `reason` says what was asked for.

    More signals are ignored for a while, since what is half written is removed first.
    """

    def __init__(self) -> None:
        self.reason: StoppedBySignal | KeyboardInterrupt | None = None
        self.last = -math.inf
        is_interruptible = signal.getsignal(signal.SIGINT) not in (
            signal.SIG_IGN,
            None,
        )  # not a shell's job in the background
        for number in signals_to_handle():
            if number != signal.SIGINT or is_interruptible:
                signal.signal(number, self.leave)

    def leave(self, number: int, frame: FrameType | None) -> None:
        self.reason = KeyboardInterrupt() if number == signal.SIGINT else self.reason or StoppedBySignal(number)
        if number == signal.SIGINT or time.monotonic() - self.last >= SECONDS_TO_LEAVE:
            self.last = time.monotonic()
            raise self.reason


def leave_on_signals() -> Leaving:
    """From now on, signals end this process tidily."""
    return Leaving()

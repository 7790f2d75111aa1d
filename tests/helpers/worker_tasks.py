"""What workers do in tests. They import it by name, so it stands apart from the tests."""

import os
import resource
import signal
from pathlib import Path

import numpy as np

from electrakit.common.errors import UserError
from electrakit.common.workers import WORKER
from tests.helpers.processes import wait_until


def double(number: int) -> int:
    return 2 * number


def fail(number: int) -> int:
    if number == 3:
        raise KeyError("the reason")
    return number


def complain(number: int) -> int:
    raise UserError("--this is yours to fix")


def die(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def crash(number: int) -> None:
    if number:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        wait_for_ever()


def return_what_cannot_be_sent(number: int) -> object:
    return lambda: number


def large_result(number: int) -> np.ndarray:
    return np.full(3_000_000, number, np.uint8)


def larger_than_a_pipe(_: object) -> bytes:
    return bytes(200_000_000)


def own_process(_: int) -> int:
    return os.getpid()


def meet(folder: Path, _: int) -> int:
    """Returns when two processes are here."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    return os.getpid()


def wait_for(others: Path, number: int) -> tuple[int, str]:
    """The first item takes until the others are done."""
    if not number:
        wait_until(others.exists)
    return number, os.environ[WORKER]


def touch_last(others: Path, number: int) -> tuple[int, str]:
    """As wait_for; the item after the first one ends its waiting."""
    result = wait_for(others, number)
    others.touch()
    return result


def wait_for_ever(started: Path | None = None) -> None:
    if started is not None:
        started.touch()
    while True:
        signal.pause()


class NeverLoaded:
    """Whoever unpickles it waits forever."""

    def __init__(self, started: Path) -> None:
        self.started = started

    def __reduce__(self) -> tuple[object, ...]:
        return wait_for_ever, (self.started,)

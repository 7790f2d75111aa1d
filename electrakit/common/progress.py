"""Shows progress: a live bar on a terminal, a plain line every few seconds in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from electrakit.common.output import MessageFile

SECONDS_BETWEEN_LINES = 10.0  # in a log file

console = Console(file=cast(Any, MessageFile()), highlight=False)
"""Messages go to standard error, so that standard output stays free for results."""

_said: set[str] = set()

Update = Callable[[int], None]


def print_message(text: str, style: str = "") -> None:
    """A line for people, shown as it is: brackets are no markup, and only the terminal wraps it."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def say_once(text: str, about: str | None = None) -> None:
    """A line for people that one process prints once. about: also other lines about the same are not printed."""
    if (about or text) not in _said:
        _said.add(about or text)
        print_message(text, "yellow")


@contextmanager
def progress(
    title: str, total: int | None, *, silent_below: int = 0, unit: str = "MB", size: float = 1e6
) -> Iterator[Update]:
    """Yields `update(done)`: bytes done out of `total`, shown with rate and time left. unit, size: for things other than bytes.

    Without a total: amount and rate only. A total below `silent_below` is not shown. After an exception nothing is called done.
    """
    pace = _Pace(unit, size)
    if total is not None and total < silent_below:
        yield pace.update
    elif console.is_terminal:
        with _bar(title, total or None, pace) as update:
            yield update
    else:
        yield _lines(title, total or None, pace)
        if pace.done is not None:
            print_message(f"{title}: done, {pace.amount(pace.done)} in {time.monotonic() - pace.started:,.0f} s")


class _Pace:
    """The rate since the first update: what an earlier start had done does not count."""

    def __init__(self, unit: str, size: float) -> None:
        self.unit, self.size = unit, size
        self.started = self.first_time = time.monotonic()
        self.first_done = 0
        self.done: int | None = None

    def update(self, done: int) -> None:
        if self.done is None:
            self.first_time, self.first_done = time.monotonic(), done
        self.done = done

    @property
    def per_second(self) -> float:
        return ((self.done or 0) - self.first_done) / max(1e-3, time.monotonic() - self.first_time)

    @property
    def rate(self) -> str:
        return f"{self.amount(self.per_second)}/s" if self.per_second else ""

    def amount(self, number: float) -> str:
        return f"{number / self.size:,.1f} {self.unit}"


@contextmanager
def _bar(title: str, total: int | None, pace: _Pace) -> Iterator[Update]:
    share: tuple[ProgressColumn, ...] = (BarColumn(bar_width=30), TaskProgressColumn(show_speed=False))
    left: tuple[ProgressColumn, ...] = (TextColumn("left"), TimeRemainingColumn())
    if total is None:  # the amount in place of the share
        share, left = (SpinnerColumn(), TextColumn("{task.fields[amount]}")), ()
    rate = TextColumn("{task.fields[rate]}")
    columns = (TextColumn("[bold]{task.description}"), *share, rate, TimeElapsedColumn(), *left)
    with Progress(*columns, console=console, refresh_per_second=5) as bar:
        task = bar.add_task(title, total=total, rate="", amount="")

        def update(done: int) -> None:
            pace.update(done)
            bar.update(task, completed=done, rate=pace.rate, amount=pace.amount(done))

        yield update
        if total is not None:
            bar.update(task, completed=total)


def _lines(title: str, total: int | None, pace: _Pace) -> Update:
    last = time.monotonic()

    def update(done: int) -> None:
        nonlocal last
        pace.update(done)
        if time.monotonic() - last < SECONDS_BETWEEN_LINES or not pace.per_second:
            return
        last = time.monotonic()
        parts = [f"{title}: {pace.amount(done)}", pace.rate]
        if total:
            parts[0] += f" of {pace.amount(total)}"
            parts.append(f"{max(0, total - done) / pace.per_second:,.0f} s left")
        print_message(", ".join(parts))

    return update

"""How far along: a live bar on a terminal, a plain line every few seconds in a log file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0

console = Console(stderr=True, highlight=False)
"""Where people read: standard error, so that standard output stays free for results."""


@contextmanager
def progress(
    title: str, total: int | None, unit: str = "MB", scale: float = 1e6
) -> Iterator[Callable[[int, str], None]]:
    """Yields `update(done, note)`: `done` out of `total`, shown divided by `scale` in `unit`, with rate and time left."""
    if console.is_terminal:
        with _bar(title, total, unit, scale) as update:
            yield update
    else:
        yield _lines(title, total, unit, scale)


@contextmanager
def _bar(title: str, total: int | None, unit: str, scale: float) -> Iterator[Callable[[int, str], None]]:
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        TaskProgressColumn(show_speed=False),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    started = time.monotonic()
    with Progress(*columns, console=console, refresh_per_second=5) as bar:
        task = bar.add_task(title, total=total, speed="", note="")

        def update(done: int, note: str = "") -> None:
            speed = f"{_rate(done, started, scale)} {unit}/s"
            bar.update(task, completed=done, speed=speed, note=note)

        yield update
        if total is not None:
            bar.update(task, completed=total)


def _lines(title: str, total: int | None, unit: str, scale: float) -> Callable[[int, str], None]:
    started = time.monotonic()
    last = started

    def update(done: int, note: str = "") -> None:
        nonlocal last
        if time.monotonic() - last < SECONDS_BETWEEN_LINES:
            return
        last = time.monotonic()
        parts = [f"{title}: {done / scale:,.1f} {unit}"]
        if total:
            left = (last - started) * max(0, total - done) / max(1, done)
            parts = [f"{title}: {done / scale:,.1f} of {total / scale:,.1f} {unit}", f"{left:,.0f} s left"]
        print(
            ", ".join([*parts, f"{_rate(done, started, scale)} {unit}/s", *([note] if note else [])]), file=sys.stderr
        )

    return update


def _rate(done: int, started: float, scale: float) -> str:
    return f"{done / scale / max(1e-3, time.monotonic() - started):,.1f}"

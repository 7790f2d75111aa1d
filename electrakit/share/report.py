"""Run folders in, report.html out: one file to look at and to send, made once, or again and again while training goes on."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

from rich.status import Status

from electrakit.errors import UserError, mended_by_user
from electrakit.progress import console
from electrakit.run_files import read_run
from electrakit.share.report_page import page
from electrakit.share.report_tables import Runs, state_of
from electrakit.share_config import ReportConfig

AnyPath = str | os.PathLike[str]
FILES = ("config.json", "environment.json", "status.json", "metrics.jsonl", "glue/results.json")
"""What a report is made of."""


def report(
    runs: AnyPath | Iterable[AnyPath],
    *,
    out: AnyPath = "report.html",
    live: bool = False,
    every: float = 30.0,
    png: bool = True,
) -> Path:
    """Make one HTML file that shows how runs went, and PNGs of its curves in a folder of the same name beside it.

    live: make it anew every so many seconds until all runs are complete, or Ctrl-C. Returns the file's path.
    """
    given = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    if not given:
        raise UserError("no run is named; name one or more folders that electra pretrain wrote (its --run)")
    if not every > 0:
        raise UserError(f"every is {every}: seconds between two looks must be above 0")
    config = ReportConfig(runs=list(map(Path, given)), out=Path(out), live=live, every=every, png=png)
    paths = distinct(config.runs)
    check_place(config.out, config.png)
    found = named(paths)
    with mended_by_user(config.out):
        config.out.parent.mkdir(parents=True, exist_ok=True)
        if config.live:
            found = follow(config, paths)
        else:
            write(config.out, page(found))
        if config.png:
            from electrakit.share.pictures import draw

            draw(found, pictures_place(config.out))
    return config.out


def follow(config: ReportConfig, paths: list[Path]) -> Runs:
    """Write the page when a run has written something or has fallen silent, until all are complete; the last loads itself no more."""
    seen: object = None
    runs = named(paths)
    with Waiting() as waiting:
        try:
            while True:
                newest = fingerprints(paths)  # before the files are read: what comes later is seen the next time
                if (newest, states_of(runs)) != seen:
                    runs = named(paths)
                    seen = newest, states_of(runs)
                    if all(run.is_complete for run in runs.values()):
                        break
                    write(config.out, page(runs, live=config.every))
                waiting.say(config.out, runs)
                time.sleep(config.every)
        except KeyboardInterrupt:
            console.print("stopped; the report stays as it is", style="yellow")
        finally:
            write(config.out, page(runs))
    return runs


def states_of(runs: Runs) -> list[str]:
    """A run falls silent by what it does not write."""
    return [state_of(run)[0] for run in runs.values()]


class Waiting:
    """A line that says how far the runs are: one that is renewed on a terminal, elsewhere one after the other."""

    def __init__(self) -> None:
        self.status = Status("", console=console) if console.is_terminal else None
        self.said = ""

    def __enter__(self) -> "Waiting":
        if self.status is not None:
            self.status.start()
        return self

    def say(self, out: Path, runs: Runs) -> None:
        lines = [f"{name}: {state_of(run)[1]}" for name, run in runs.items()]
        words = f"{out} · {'; '.join(lines)} · Ctrl-C ends"
        if self.status is not None:
            from rich.text import Text

            self.status.update(Text(words, overflow="ellipsis", no_wrap=True))
        elif words != self.said:
            console.print(words, markup=False, soft_wrap=True)
        self.said = words

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()


# Runs


def named(paths: list[Path]) -> Runs:
    """By names as short as they can be and still be different: their folders', and as much of the path before as that takes."""
    runs = [read_run(path) for path in paths]
    return dict(zip(names_of([run.path.resolve() for run in runs]), runs, strict=True))


def names_of(paths: list[Path]) -> list[str]:
    names = []
    for path in paths:
        parts = path.parts
        num_parts = 1
        while num_parts < len(parts) and any(
            other != path and other.parts[-num_parts:] == parts[-num_parts:] for other in paths
        ):
            num_parts += 1
        names.append("/".join(parts[-num_parts:]))
    return names


def distinct(paths: list[Path]) -> list[Path]:
    """Each run once, whichever way it was named."""
    return list({path.resolve(): path for path in reversed(paths)}.values())[::-1]


def fingerprints(paths: list[Path]) -> list[tuple[int, int] | None]:
    """Of every file that is read: its size and when it was written."""
    return [fingerprint(path / name) for path in paths for name in FILES]


def fingerprint(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


# The file


def check_place(out: Path, has_pictures: bool) -> None:
    """Before any work is done."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file, such as {out / 'report.html'}")
    place = pictures_place(out)
    if has_pictures and place.exists() and not place.is_dir():
        raise UserError(
            f"{place} is a file, and the PNGs go into a folder of that name; name another --out, or add --no-png"
        )


def pictures_place(out: Path) -> Path:
    """report.html -> report/"""
    return out.with_suffix("") if out.suffix else out.with_name(f"{out.name}_pictures")


def write(out: Path, content: bytes) -> None:
    """Whole or not at all: a browser may be reading it."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)

"""Writes the HTML report of runs and the PNGs of its curves: once, or again and again while training continues."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.status import Status
from rich.text import Text

from electrakit.common.atomic import atomic_write
from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.ownership import make_way, require_apart, require_free_file
from electrakit.common.plots import is_figure
from electrakit.common.progress import console
from electrakit.config.outputs import ReportConfig
from electrakit.report.page import page
from electrakit.report.tables import Runs, state_of
from electrakit.runs import layout
from electrakit.runs.files import read_run

AnyPath = str | os.PathLike[str]
REPORT_FILES = (
    layout.CONFIG_FILE,
    layout.ENVIRONMENT_FILE,
    layout.STATUS_FILE,
    layout.METRICS_FILE,
    layout.GLUE_RESULTS,
    layout.MEASURE_FILE,
)
"""What a report is made of."""


def report(
    runs: AnyPath | Iterable[AnyPath],
    *,
    out: AnyPath = "report.html",
    live: bool = False,
    every: float = 30.0,
    png: bool = True,
    overwrite: bool = False,
) -> Path:
    """Make one HTML file that shows how runs went, and PNGs of its curves in a folder of the same name beside it.

    live: write it again whenever there is something new, until all runs are complete or Ctrl-C. `every`: seconds between two looks.
    Returns the path of the file.
    """
    config = ReportConfig(**locals())
    paths = distinct(config.runs)
    check_out(config)
    found = read_runs(paths)
    with explain_write_errors(config.out):
        config.out.parent.mkdir(parents=True, exist_ok=True)
        if config.live:
            found = follow(config, paths, found)
        else:
            write_page(config, page(found))
        if config.png:
            from electrakit.report.figures import draw_figures

            draw_figures(found, png_folder(config.out), config.overwrite)
    return config.out


def follow(config: ReportConfig, paths: list[Path], runs: Runs) -> Runs:
    """Write the page when a run has written something or has fallen silent, until all are complete. The last page does not reload."""
    seen: object = None
    with progress_line() as show:
        try:
            while True:
                newest = fingerprints(paths)  # before the files are read: what comes later is seen the next time
                if (newest, states_of(runs)) != seen:
                    runs = read_runs(paths)
                    seen = newest, states_of(runs)
                    if all(run.is_complete for run in runs.values()):
                        break
                    write_page(config, page(runs, live=config.every))
                lines = [f"{name}: {state_of(run).line}" for name, run in runs.items()]
                show(f"{config.out} · {'; '.join(lines)} · Ctrl-C ends")
                time.sleep(config.every)
        except KeyboardInterrupt:
            console.print("stopped; the report stays as it is", style="yellow")
        finally:
            write_page(config, page(runs))
    return runs


def states_of(runs: Runs) -> list[str]:
    """A run becomes silent without writing a file: fingerprints do not show it."""
    return [state_of(run).word for run in runs.values()]


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yields `show(line)`: one line that is renewed on a terminal, elsewhere a new line for each change."""
    if console.is_terminal:
        with Status("", console=console) as status:
            yield lambda line: status.update(Text(line, overflow="ellipsis", no_wrap=True))
    else:
        shown = ""

        def show(line: str) -> None:
            nonlocal shown
            if line != shown:
                console.print(line, markup=False, soft_wrap=True)
            shown = line

        yield show


# Runs


def read_runs(paths: list[Path]) -> Runs:
    """By the shortest names that differ: that of the folder, and as much of the path before it as needed."""
    runs = [read_run(path) for path in paths]
    return dict(zip(names_of([run.path.resolve() for run in runs]), runs, strict=True))


def names_of(paths: list[Path]) -> list[str]:
    names = []
    for path in paths:
        others = [other.parts for other in paths if other != path]
        num_parts = 1
        while any(other[-num_parts:] == path.parts[-num_parts:] for other in others):
            num_parts += 1
        names.append("/".join(path.parts[-num_parts:]))
    return names


def distinct(paths: Sequence[Path]) -> list[Path]:
    """Each run once, even if it was named in two ways."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def fingerprints(paths: list[Path]) -> list[tuple[int, int] | None]:
    """Size and time of every file that is read."""
    return [file_state(path / name) for path in paths for name in REPORT_FILES]


def file_state(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


# The file


def check_out(config: ReportConfig) -> None:
    """Before any work is done."""
    out = config.out
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; name a file, such as {out / 'report.html'}")
    for run in config.runs:
        require_apart(out, [run, *(run / name for name in REPORT_FILES)])
    require_free_file(out, is_page, "a report", overwrite=config.overwrite)
    folder = png_folder(out)
    if config.png and folder.exists() and not folder.is_dir():
        raise UserError(
            f"{folder} is a file, and the PNGs go into a folder of that name; name another --out, or add --no-png"
        )
    if config.png:
        from electrakit.report.figures import FIGURES, GLUE_FIGURE

        for name in (*FIGURES, GLUE_FIGURE):
            require_free_file(folder / f"{name}.png", is_figure, "a curve", overwrite=config.overwrite)


def write_page(config: ReportConfig, content: bytes) -> None:
    place = make_way(config.out, is_page, "a report", overwrite=config.overwrite)
    atomic_write(place, content)


def is_page(head: bytes) -> bool:
    return b'<meta name="generator" content="ElectraKit">' in head


def png_folder(out: Path) -> Path:
    """report.html -> report/"""
    return out.with_suffix("") if out.suffix else out.with_name(f"{out.name}_pictures")

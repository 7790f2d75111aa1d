"""Runs in, PNGs out as papers print them: the same curves as on the page, 300 dots an inch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electrakit.doctor.run_evidence import entropy
from electrakit.run_files import RunFiles, column
from electrakit.share.charts import (
    CHARTS,
    PALETTE,
    Chart,
    bucket_edges,
    bucket_means,
    smoothed,
)
from electrakit.share.report_glue import Point, compute_points, published_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHING = 0.01
START = 0.03
ROOM = 2.5  # points (of 72 an inch) around the middle of a mark that no name covers
LEFT = ((-5, 4), "right", "baseline")  # of a mark, for its name: how far off, and which edge of the name lies there
AROUND = (
    *(((7, 0), "left", "center"), ((7, 4.5), "left", "center"), ((7, -4.5), "left", "center")),
    *(((-7, 0), "right", "center"), ((0, 5), "center", "bottom"), ((0, -5), "center", "top")),
)
MOST_POINTS = 1500
LINES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
MARKS = ("o", "s", "D", "^")
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 300,
}


@dataclass(frozen=True)
class Picture:
    """A file, and the figures of the log that stand side by side in it."""

    name: str
    keys: tuple[str, ...]


PICTURES = (
    Picture("loss", ("loss",)),
    Picture("generator", ("mlm_loss", "gen_acc")),
    Picture("discriminator", ("disc_loss", "disc_acc", "disc_auc")),
    Picture("replaced", ("replaced_rate",)),
    Picture("learning_rate", ("lr",)),
    Picture("gradient_norm", ("grad_norm",)),
    Picture("speed", ("tokens_per_second",)),
)


def draw(runs: dict[str, RunFiles], folder: Path) -> list[Path]:
    """Every picture that there are figures for. Returns the files; those of an earlier report that there are no more are removed."""
    import matplotlib

    charts = {chart.key: chart for chart in CHARTS}
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for picture in PICTURES:
            shown = [charts[key] for key in picture.keys if any(has_values(run, key) for run in runs.values())]
            if shown:
                written.append(save(curves_figure(runs, shown), folder / f"{picture.name}.png"))
        if any(point["score"] is not None for point in compute_points(runs)):
            written.append(save(glue_figure(runs), folder / "glue.png"))
    for name in (*(picture.name for picture in PICTURES), "glue"):
        if folder / f"{name}.png" not in written:
            (folder / f"{name}.png").unlink(missing_ok=True)
    return written


def save(figure: Any, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)
    return path


def has_values(run: RunFiles, key: str) -> bool:
    return bool(np.isfinite(column(run.lines, key)).any())


def curves_figure(runs: dict[str, RunFiles], charts: Sequence[Chart]) -> Any:
    """Panels side by side; one legend below if there are several runs."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    width = 3.5 if len(charts) == 1 else 3.1 * len(charts)
    longest_name = max(len(in_legend(name)) for name in [*runs, "nothing learned"])
    num_columns = max(1, int(width * 15 / (longest_name + 8)))
    num_rows = -(-(len(runs) + 2) // num_columns)
    figure = Figure(figsize=(width, 2.4 + 0.17 * num_rows), layout="constrained")
    panels = figure.subplots(1, len(charts), squeeze=False)[0]
    longest = max(run.step for run in runs.values())
    has_dotted = False
    for axes, chart in zip(panels, charts, strict=True):
        for place, run in enumerate(runs.values()):
            has_dotted |= draw_run(axes, chart, run, place, SMOOTHING * longest)
        if chart.baseline == "chance":
            axes.axhline(0.5, color="#777777", linestyle=":", linewidth=1)
            has_dotted = True
        finish(axes, chart)
    handles = [
        Line2D([], [], color=PALETTE[place % len(PALETTE)], linestyle=LINES[place % len(LINES)], label=in_legend(name))
        for place, name in enumerate(runs)
    ]
    has_marks = any(np.isfinite(column(run.valid, chart.key)).any() for run in runs.values() for chart in charts)
    marked = [
        Line2D(
            [],
            [],
            color="#555555",
            marker="o",
            linestyle="none",
            markersize=3.5,
            markerfacecolor="white",
            label="validation",
        )
    ]
    dotted = [Line2D([], [], color="#555555", linestyle=":", label="nothing learned")]
    handles += (marked if has_marks else []) + (dotted if has_dotted else [])
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), num_columns))
    return figure


def draw_run(axes: "Axes", chart: Chart, run: RunFiles, place: int, num_steps: float) -> bool:
    """Raw behind what is smoothed over so many steps, validations as marks. Returns whether there is a dotted line too."""
    colour, line = PALETTE[place % len(PALETTE)], LINES[place % len(LINES)]
    steps, values = column(run.train, "step"), column(run.train, chart.key)
    has_dotted = False
    if np.isfinite(values).any():
        edges = bucket_edges(len(values), MOST_POINTS)
        at, means = bucket_means(steps, edges), bucket_means(values, edges)
        sigma = num_steps * (len(at) - 1) / max(1.0, at[-1] - at[0]) if chart.can_smooth else 0.0
        axes.plot(at, means, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(at, smoothed(means, sigma), color=colour, linestyle=line)
        if chart.baseline in ("entropy", "majority") and run.base_rate is not None:
            rates = smoothed(bucket_means(column(run.train, run.base_rate), edges), max(1.0, sigma))
            axes.plot(
                at,
                entropy(rates) if chart.baseline == "entropy" else np.maximum(rates, 1 - rates),
                color=colour,
                linestyle=":",
                linewidth=1,
            )
            has_dotted = True
    is_alone = not np.isfinite(values).any()
    validations = [
        line for line in run.valid if is_alone or line["step"] > 0
    ]  # nothing to compare with before the first step
    steps, values = column(validations, "step"), column(validations, chart.key)
    if np.isfinite(values).any():
        mark = MARKS[place % len(MARKS)] if len(values) <= 60 else ""
        axes.plot(
            *(steps, values),
            color=colour,
            linestyle=line if is_alone else "none" if mark else "--",
            linewidth=1,
            marker=mark,
            markersize=3.5,
            markerfacecolor="white",
        )
    return has_dotted


def finish(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

    leave_start_out(axes, chart)
    axes.set_title(chart.title.removesuffix(" (validation)"))
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    if chart.is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    elif chart.format == "percent":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    elif chart.format == "count":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylim(bottom=0)
    axes.set_ylabel(chart.unit)


def leave_start_out(axes: "Axes", chart: Chart) -> None:
    """The first moments of a run are often far from all that follows: then they leave the frame, as on the page."""
    if chart.is_log:
        return
    drawn = [np.array(line.get_xydata(), dtype=np.float64) for line in axes.get_lines()]
    points = np.concatenate(
        [np.zeros((0, 2)), *(line for line in drawn if len(line) > 2)]
    )  # no level over the whole width
    points = points[np.isfinite(points).all(axis=1)]
    later = points[points[:, 0] >= START * points[:, 0].max()] if len(points) else points
    if len(later) and np.ptp(later[:, 1]) < 0.4 * np.ptp(points[:, 1]):
        low, high = later[:, 1].min(), later[:, 1].max()
        room = 0.06 * (high - low) or 0.1 * abs(high)
        axes.set_ylim(low - room, high + room)


def in_legend(name: str) -> str:
    """Not too long. A $ would begin a formula, a leading _ would hide it."""
    shown = name if len(name) <= 26 else f"{name[:11]}…{name[-14:]}"
    return ("\u200b" if shown.startswith("_") else "") + shown.replace("$", r"\$")


def glue_figure(runs: dict[str, RunFiles]) -> Any:
    """Published points hollow, ours filled; compute on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.4), layout="constrained")
    axes = figure.subplots()
    published = published_points()
    line = [point for point in published if point.part is not None]
    axes.plot([point.flops for point in line], [point.score for point in line], color="#999999", linewidth=1, zorder=1)
    axes.scatter(
        [point.flops for point in published],
        [point.score for point in published],
        facecolors="white",
        edgecolors="#777777",
        s=22,
        label="published",
        zorder=2.5,
    )
    scored = [point for point in compute_points(runs) if point["score"] is not None]
    for ours in scored:
        colour, mark = PALETTE[ours["run"] % len(PALETTE)], MARKS[ours["run"] % len(MARKS)]
        axes.scatter(
            [ours["flops"]],
            [ours["score"]],
            color=colour,
            marker=mark,
            s=34,
            label=in_legend(ours["name"]),
            zorder=3,
        )
    axes.set_xscale("log")
    left, right = map(math.log10, axes.get_xlim())
    axes.set_xlim(10 ** (left - 0.05 * (right - left)), 10 ** (right + 0.2 * (right - left)))  # room for names
    axes.set_xlabel("training compute, FLOPs")
    axes.set_ylabel("GLUE dev, mean of 8 tasks")
    figure.legend(loc="outside lower center", ncols=3)
    figure.draw_without_rendering()  # from here on it is known where everything lies
    name_points(axes, published, [(ours["flops"], ours["score"]) for ours in scored])
    return figure


def name_points(axes: "Axes", points: Sequence[Point], others: Sequence[tuple[float, float]]) -> None:
    """Each name beside its point, on the first side where it covers nothing; without such a side it is left out.

    The paper's models choose first, then the parts of ELECTRA-Small's training, then what others trained.
    """
    from matplotlib.transforms import Bbox

    frame, room = axes.get_window_extent(), ROOM * axes.figure.dpi / 72
    places = axes.transData.transform([*((point.flops, point.score) for point in points), *others])
    taken = [Bbox.from_extents(x - room, y - room, x + room, y + room) for x, y in places]
    for point in sorted(
        points, key=lambda point: (not point.source.startswith("Clark"), point.part not in (None, 1.0))
    ):
        name = point.label if point.source.startswith("Clark") else f"{point.label} ({point.source})"
        for offset, across, up in AROUND if point.part is None else (LEFT, *AROUND) if point.part == 1 else (LEFT,):
            words = axes.annotate(
                *(name, (point.flops, point.score), offset),
                textcoords="offset points",
                ha=across,
                va=up,
                fontsize=6.5,
                color="#666666",
                in_layout=False,
            )
            box = words.get_window_extent()
            is_inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if is_inside and not box.count_overlaps(taken):
                taken.append(box)
                break
            words.remove()

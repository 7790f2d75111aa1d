"""Draws the curves of runs as PNGs for papers: the same curves as on the page, at 300 dots per inch."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electrakit.common import plots
from electrakit.common.atomic import atomic_write
from electrakit.common.ownership import is_our_file, make_way
from electrakit.doctor.evidence import entropy
from electrakit.report.curves import CHARTS, Chart, bucket_edges, bucket_means
from electrakit.report.scores import PublishedPoint, compute_points, published_points
from electrakit.runs.files import MetricsLine, RunFiles, column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Share of the longest run that training is smoothed over.
SMOOTHED_SHARE = 0.01
# Share of a run that may leave the frame.
START = 0.03
# Points (of 72 per inch) around the middle of a marker that no name covers.
ROOM = 2.5
# Places of a name beside its marker: how far off, and which edge of the name lies there.
LEFT = ((-5, 4), "right", "baseline")
AROUND = (
    *(((7, 0), "left", "center"), ((7, 4.5), "left", "center"), ((7, -4.5), "left", "center")),
    *(((-7, 0), "right", "center"), ((0, 5), "center", "bottom"), ((0, -5), "center", "top")),
)
MOST_POINTS = 1500
# File -> metrics of the log that stand side by side in it.
FIGURES = {
    "loss": ("loss",),
    "generator": ("mlm_loss", "gen_acc"),
    "discriminator": ("disc_loss", "disc_acc", "disc_auc"),
    "corruptions": ("auc_frequency", "auc_neighbours", "auc_swapped"),
    "replaced": ("replaced_rate",),
    "learning_rate": ("lr",),
    "gradient_norm": ("grad_norm",),
    "speed": ("tokens_per_second",),
}

GLUE_FIGURE = "glue"


def draw_figures(runs: dict[str, RunFiles], folder: Path, overwrite: bool = False) -> None:
    """Draw every figure that there are metrics for. Files of an earlier report that are out of date are removed.

    overwrite: files of others are renamed.
    """
    figures: dict[str, Figure | None] = {}
    for name, keys in FIGURES.items():
        charts = [chart for chart in CHARTS if chart.key in keys]
        shown = [chart for chart in charts if any(has_values(run.lines, chart) for run in runs.values())]
        figures[name] = curves_figure(runs, shown) if shown else None
    has_scores = any(point.score is not None for point in compute_points(runs))
    figures[GLUE_FIGURE] = glue_figure(runs) if has_scores else None
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        if figure is not None:
            content = plots.to_png(figure, dpi=300)
            atomic_write(make_way(path, plots.is_figure, "a curve", overwrite=overwrite), content)
        elif is_our_file(path, plots.is_figure):
            path.unlink()


def has_values(lines: Sequence[MetricsLine], chart: Chart) -> bool:
    return bool(np.isfinite(column(lines, chart.key)).any())


def curves_figure(runs: dict[str, RunFiles], charts: Sequence[Chart]) -> "Figure":
    """Panels side by side, with one legend below."""
    from matplotlib.lines import Line2D

    width = 3.5 if len(charts) == 1 else 3.1 * len(charts)
    longest_name = max(len(in_legend(name)) for name in [*runs, "nothing learned"])
    num_columns = max(1, int(width * 15 / (longest_name + 8)))
    num_rows = -(-(len(runs) + 2) // num_columns)
    figure, panels = plots.new_figure(width, 2.4 + 0.17 * num_rows, num_columns=len(charts))
    longest = max(run.step for run in runs.values())
    for axes, chart in zip(panels, charts, strict=True):
        for place, run in enumerate(runs.values()):
            draw_run(axes, chart, run, place, SMOOTHED_SHARE * longest)
        if chart.baseline == "chance":
            axes.axhline(0.5, color="#777777", linestyle=":", linewidth=1)
        finish(axes, chart)
    handles = [
        Line2D([], [], color=colour, linestyle=line_style, linewidth=1.4, label=in_legend(name))
        for name, (colour, line_style, _) in zip(runs, map(plots.look_of, range(len(runs))), strict=True)
    ]
    if any(has_values(run.valid, chart) for run in runs.values() for chart in charts):
        marker: Any = {"marker": "o", "linestyle": "none", "markersize": 3.5, "markerfacecolor": "white"}
        handles.append(Line2D([], [], color="#555555", label="validation", **marker))
    if any(line.get_linestyle() == ":" for axes in panels for line in axes.get_lines()):
        handles.append(Line2D([], [], color="#555555", linestyle=":", linewidth=1.4, label="nothing learned"))
    plots.add_legend(figure, handles=handles, loc="outside lower center", ncols=min(len(handles), num_columns))
    return figure


def draw_run(axes: "Axes", chart: Chart, run: RunFiles, place: int, num_steps: float) -> None:
    """Training smoothed over so many steps, raw values behind it, validations as markers, a dotted baseline."""
    colour, line_style, marker = plots.look_of(place)
    has_train = has_values(run.train, chart)
    if has_train:
        steps, values = column(run.train, "step"), column(run.train, chart.key)
        edges = bucket_edges(len(values), MOST_POINTS)
        at, means = bucket_means(steps, edges), bucket_means(values, edges)
        sigma = num_steps * (len(at) - 1) / max(1.0, at[-1] - at[0]) if chart.can_smooth else 0.0
        plots.draw_line(axes, at, plots.smoothed(means, sigma), colour, raw=means, line_style=line_style)
        if chart.baseline in ("entropy", "majority") and run.base_rate is not None:
            rates = plots.smoothed(bucket_means(column(run.train, run.base_rate), edges), max(1.0, sigma))
            baseline = entropy(rates) if chart.baseline == "entropy" else np.maximum(rates, 1 - rates)
            axes.plot(at, baseline, color=colour, linestyle=":", linewidth=1)
    # Before the first step there is nothing to compare a validation with.
    validations = [line for line in run.valid if not has_train or line["step"] > 0]
    if has_values(validations, chart):
        has_markers = len(validations) <= 60
        axes.plot(
            *(column(validations, "step"), column(validations, chart.key)),
            color=colour,
            linestyle=line_style if not has_train else "none" if has_markers else "--",
            linewidth=1,
            marker=marker if has_markers else "",
            markersize=3.5,
            markerfacecolor="white",
        )


def finish(axes: "Axes", chart: Chart) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

    leave_start_out(axes, chart)
    axes.set_title(chart.title, fontsize=plots.FONT_SIZE)
    plots.number_steps(axes)
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
    # A line over the full width has two points and does not count.
    points = np.concatenate([np.zeros((0, 2)), *(line for line in drawn if len(line) > 2)])
    points = points[np.isfinite(points).all(axis=1)]
    later = points[points[:, 0] >= START * points[:, 0].max()] if len(points) else points
    if len(later) and np.ptp(later[:, 1]) < 0.4 * np.ptp(points[:, 1]):
        plots.frame_values(axes, later[:, 1])


def in_legend(name: str) -> str:
    """Not too long. A $ would begin a formula, a leading _ would hide it."""
    shown = name if len(name) <= 26 else f"{name[:11]}…{name[-14:]}"
    return ("\u200b" if shown.startswith("_") else "") + shown.replace("$", r"\$")


def glue_figure(runs: dict[str, RunFiles]) -> "Figure":
    """Published points hollow, ours filled; compute on a logarithmic axis."""
    figure, (axes,) = plots.new_figure(5.5, 3.4)
    published = published_points()
    line = [point for point in published if point.fraction is not None]
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
    scored = [(point, point.score) for point in compute_points(runs) if point.score is not None]
    for point, score in scored:
        colour, _, marker = plots.look_of(point.run)
        look: Any = {"color": colour, "marker": marker, "s": 34, "zorder": 3}
        axes.scatter([point.flops], [score], label=in_legend(point.name), **look)
    axes.set_xscale("log")
    left, right = map(math.log10, axes.get_xlim())
    axes.set_xlim(10 ** (left - 0.05 * (right - left)), 10 ** (right + 0.2 * (right - left)))  # room for names
    axes.set_xlabel("training compute, FLOPs")
    axes.set_ylabel("GLUE dev, mean of 8 tasks")
    plots.add_legend(figure, loc="outside lower center", ncols=3)
    figure.draw_without_rendering()  # from here on it is known where everything lies
    name_points(axes, published, [(point.flops, score) for point, score in scored])
    return figure


def name_points(axes: "Axes", points: Sequence[PublishedPoint], others: Sequence[tuple[float, float]]) -> None:
    """Each name beside its point, on the first side where it covers nothing; without such a side it is left out.

    The paper's models choose first, then the parts of ELECTRA-Small's training, then what others trained.
    """
    from matplotlib.transforms import Bbox

    frame, room = axes.get_window_extent(), ROOM * axes.figure.dpi / 72
    places = axes.transData.transform([*((point.flops, point.score) for point in points), *others])
    taken = [Bbox.from_extents(x - room, y - room, x + room, y + room) for x, y in places]
    for point in sorted(points, key=lambda point: (not point.is_of_paper, point.fraction not in (None, 1))):
        name = point.label if point.is_of_paper else f"{point.label} ({point.source})"
        sides = AROUND if point.fraction is None else (LEFT, *AROUND) if point.fraction == 1 else (LEFT,)
        for offset, across, up in sides:
            words = axes.annotate(
                *(name, (point.flops, point.score), offset),
                textcoords="offset points",
                ha=across,
                va=up,
                fontsize=6.5,
                color=plots.MUTED,
                in_layout=False,
            )
            box = words.get_window_extent()
            is_inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if is_inside and not box.count_overlaps(taken):
                taken.append(box)
                break
            words.remove()

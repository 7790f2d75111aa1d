"""The protocol's figures in, a Markdown table and two plots out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electrakit.evaluate.published import COLUMNS, PUBLISHED, SHOWN
from electrakit.evaluate.results import Result
from electrakit.evaluate.tasks import AVERAGED, TASKS

DASH = "–"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}"


def markdown(figures: dict[str, Any]) -> str:
    """The table that papers print, ours above and the published rows below; then each task with its spread."""
    tasks, average = figures["tasks"], figures["average"]
    num_seeds = max((len(task["seeds"]) for task in tasks.values()), default=0)
    lines = [
        f"# GLUE: {figures['model']}",
        "",
        f"Dev scores × 100, the median of {runs_in_words(num_seeds)}. {average_in_words(average)}",
        "",
        "| model | " + " | ".join(TASKS[name].title for name in COLUMNS) + " | average |",
        "|---|" + "---|" * (len(COLUMNS) + 1),
        f"| **{Path(figures['model']).name}** (ours) | {_row(tasks, 'median')} | {average_of(average)} |",
        f"| standard deviation | {_row(tasks, 'sd')} | {DASH} |",
    ]
    for row in PUBLISHED:
        scores = [f"{score:.1f}" for score in row.scores] or [DASH] * len(COLUMNS)
        lines.append(f"| {row.name} (published: {row.source}) | {' | '.join(scores)} | {row.mean:.1f} |")
    lines += [
        "",
        "| task | metric | median | mean | sd | min | max | best seed | begins with | notes |",
        "|---|" + "---|" * 9,
    ]
    for name, task in tasks.items():
        cells = [TASKS[name].title, task["metric"]]
        cells += [percent(task[figure]) for figure in ("median", "mean", "sd", "min", "max")]
        cells += [str(task["best_seed"]), task["start_from"] or "the model", "; ".join(notes_of(task)) or DASH]
        lines.append("| " + " | ".join(cells) + " |")
    for name in tasks:
        parts = tasks[name]["medians"]
        if len(parts) > 1 or len(next(iter(parts.values()))) > 1:
            said = [
                f"{part} {metric} {percent(value)}" for part, each in parts.items() for metric, value in each.items()
            ]
            lines.append(f"\n{TASKS[name].title}: {', '.join(said)}.")
    if figures.get("ensembles"):
        lines.append(f"\n{ensemble_in_words(figures)}")
    lines += ["", figures["submission"], "", "![scores](scores.png)", "", "![training losses](losses.png)"]
    return "\n".join(lines) + "\n"


def ensemble_in_words(figures: dict[str, Any]) -> str:
    if not figures.get("ensembles"):
        return ""
    said = [f"{TASKS[name].title} {percent(score)}" for name, score in figures["ensembles"].items()]
    return f"The ensemble of the best {figures['ensemble']} runs on dev: {', '.join(said)}."


def notes_of(task: dict[str, Any]) -> list[str]:
    """What must not be overlooked about a task."""
    notes = list(task["warnings"])
    if task["collapsed"]:
        seeds = ", ".join(f"seed {seed}: {'; '.join(reasons)}" for seed, reasons in task["collapsed"].items())
        notes.insert(0, f"**{len(task['collapsed'])} of {len(task['seeds'])} runs collapsed** ({seeds})")
    if task["num_undefined"]:
        notes.append(f"{task['num_undefined']} undefined scores count as 0")
    return notes


def runs_in_words(number: int) -> str:
    return "one run" if number == 1 else f"{number} runs"


def average_in_words(average: dict[str, Any]) -> str:
    if average["is_complete"]:
        return "The average is over the eight tasks; WNLI is left out, as usual."
    names = ", ".join(TASKS[name].title for name in average["tasks"]) or "no task"
    return f"**The average is over {len(average['tasks'])} of {len(AVERAGED)} tasks** ({names}): not the average of the papers."


def average_of(average: dict[str, Any]) -> str:
    if average["is_complete"] or average["value"] is None:
        return percent(average["value"])
    return f"{percent(average['value'])} ({len(average['tasks'])} of {len(AVERAGED)} tasks)"


def _row(tasks: dict[str, Any], figure: str) -> str:
    return " | ".join(percent(tasks[name][figure]) if name in tasks else DASH for name in COLUMNS)


RUN, BAD, OTHER, QUIET = "#0969da", "#d1242f", "#8250df", "#57606a"  # colours of the plots


def plot_scores(figures: dict[str, Any], path: Path) -> None:
    """A line for each task: each run a dot, a collapsed one a cross, the median a stroke, a published row as diamonds."""
    from matplotlib.figure import Figure

    tasks = figures["tasks"]
    figure = Figure(figsize=(9, 1.5 + 0.42 * len(tasks)), layout="constrained")
    axes = _plain(figure.add_subplot())
    for place, (name, task) in enumerate(tasks.items()):
        axes.hlines(place, 100 * task["min"], 100 * task["max"], color=RUN, alpha=0.25, linewidth=5, zorder=1)
        for seed, score in zip(task["seeds"], task["scores"], strict=True):
            is_bad = str(seed) in task["collapsed"]
            axes.scatter(100 * score, place, c=BAD if is_bad else RUN, marker="x" if is_bad else "o", s=34, alpha=0.75)
        axes.vlines(100 * task["median"], place - 0.3, place + 0.3, color=RUN, linewidth=2)
        said = percent(task["median"])
        axes.annotate(said, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=10)
        if name in COLUMNS:
            known = SHOWN.scores[COLUMNS.index(name)]
            axes.scatter(known, place, marker="D", facecolors="none", edgecolors=OTHER, s=42, linewidths=1.5, zorder=4)
    marks = [{"marker": "o", "color": RUN}, {"marker": "x", "color": BAD}, {"marker": "|", "color": RUN}]
    marks.append({"marker": "D", "color": OTHER, "markerfacecolor": "none"})
    words = ("a run", "a run that collapsed", "median (the number)", f"published: {SHOWN.name} ({SHOWN.source})")
    for mark, label in zip(marks, words, strict=True):
        axes.plot([], [], linestyle="none", label=label, **mark)
    axes.set_yticks(range(len(tasks)), [f"{task['title']}  {task['metric']}" for task in tasks.values()])
    axes.invert_yaxis()
    axes.set_xlim(right=100)
    axes.set_xlabel("dev score × 100", color=QUIET)
    axes.grid(axis="x", alpha=0.3)
    figure.suptitle(f"GLUE: {Path(figures['model']).name}", x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=140)


def plot_losses(by_task: dict[str, Sequence[Result]], path: Path) -> None:
    """The training loss of every run, a panel for each task; of collapsed runs in red."""
    from matplotlib.figure import Figure

    names = [name for name in TASKS if by_task.get(name)]
    num_columns = min(4, len(names))
    num_rows = -(-len(names) // num_columns)
    figure = Figure(figsize=(max(4.0, 2.8 * num_columns), 0.5 + 2.2 * num_rows), layout="constrained")
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for panel, name in zip(panels, names, strict=False):
        for result in by_task[name]:
            points = [(step, loss) for step, loss in result["losses"] if loss is not None]
            if points:
                look = {"color": BAD, "linestyle": "--"} if result["collapsed"] else {"color": RUN}
                _plain(panel).plot(*zip(*points, strict=True), linewidth=1.1, alpha=0.65, **look)
        panel.set_title(f"{TASKS[name].title}, {runs_in_words(len(by_task[name]))}", fontsize=10, loc="left")
        panel.set_ylim(bottom=0)
        panel.grid(axis="y", alpha=0.3)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    figure.supxlabel("steps", fontsize=9, color=QUIET)
    figure.supylabel("training loss", fontsize=9, color=QUIET)
    figure.savefig(path, dpi=140)


def _plain(axes: Any) -> Any:
    """Without the frame that says nothing."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, labelcolor=QUIET)
    return axes

"""The protocol's figures in, a Markdown table and two plots out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electrakit.evaluate.published import COLUMNS, PUBLISHED
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
        f"Dev scores × 100, the median of {_runs(num_seeds)}. {_average_in_words(average)}",
        "",
        "| model | " + " | ".join(TASKS[name].title for name in COLUMNS) + " | average |",
        "|---|" + "---|" * (len(COLUMNS) + 1),
        f"| **{Path(figures['model']).name}** (ours) | {_row(tasks, 'median')} | {_average(average)} |",
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
        said = [f"{TASKS[name].title} {percent(score)}" for name, score in figures["ensembles"].items()]
        lines.append(f"\nThe ensemble of the best {figures['ensemble']} runs on dev: {', '.join(said)}.")
    lines += ["", figures["submission"], "", "![scores](scores.png)", "", "![training losses](losses.png)"]
    return "\n".join(lines) + "\n"


def notes_of(task: dict[str, Any]) -> list[str]:
    """What must not be overlooked about a task."""
    notes = list(task["warnings"])
    if task["collapsed"]:
        seeds = ", ".join(f"seed {seed}: {'; '.join(reasons)}" for seed, reasons in task["collapsed"].items())
        notes.insert(0, f"**{len(task['collapsed'])} of {len(task['seeds'])} runs collapsed** ({seeds})")
    if task["num_undefined"]:
        notes.append(f"{task['num_undefined']} undefined scores count as 0")
    return notes


def _runs(number: int) -> str:
    return "one run" if number == 1 else f"{number} runs"


def _average_in_words(average: dict[str, Any]) -> str:
    if average["is_complete"]:
        return "The average is over the eight tasks; WNLI is left out, as usual."
    names = ", ".join(TASKS[name].title for name in average["tasks"]) or "no task"
    return f"**The average is over {len(average['tasks'])} of {len(AVERAGED)} tasks** ({names}): not the average of the papers."


def _average(average: dict[str, Any]) -> str:
    if average["is_complete"] or average["value"] is None:
        return percent(average["value"])
    return f"{percent(average['value'])} ({len(average['tasks'])} of {len(AVERAGED)} tasks)"


def _row(tasks: dict[str, Any], figure: str) -> str:
    return " | ".join(percent(tasks[name][figure]) if name in tasks else DASH for name in COLUMNS)


def plot_scores(figures: dict[str, Any], path: Path) -> None:
    """Each run a dot, the median a line, a published row as hollow marks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = [name for name in TASKS if name in figures["tasks"]]
    for place, name in enumerate(names):
        task = figures["tasks"][name]
        colours = ["tab:red" if str(seed) in task["collapsed"] else "tab:blue" for seed in task["seeds"]]
        axes.scatter(
            [place] * len(task["scores"]), [100 * score for score in task["scores"]], c=colours, s=22, alpha=0.7
        )
        axes.hlines(100 * task["median"], place - 0.25, place + 0.25, color="tab:blue")
    row = next(row for row in PUBLISHED if row.scores and row.name == "ELECTRA-Small-OWT")
    known = [(place, row.scores[COLUMNS.index(name)]) for place, name in enumerate(names) if name in COLUMNS]
    if known:
        label = f"published: {row.name} ({row.source})"
        axes.scatter(*zip(*known, strict=True), marker="D", facecolors="none", edgecolors="gray", label=label)
        figure.legend(frameon=False, fontsize=8, loc="outside lower center")
    axes.set_xticks(range(len(names)), [f"{TASKS[name].title}\n{figures['tasks'][name]['metric']}" for name in names])
    axes.set_ylabel("dev score × 100")
    axes.set_title(f"{Path(figures['model']).name}: runs (dots; red: collapsed) and their median")
    axes.set_ylim(top=100)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)


def plot_losses(by_task: dict[str, Sequence[Result]], path: Path) -> None:
    """The training loss of every run, a panel for each task."""
    from matplotlib.figure import Figure

    names = [name for name in TASKS if by_task.get(name)]
    num_columns = min(4, len(names))
    num_rows = -(-len(names) // num_columns)
    figure = Figure(figsize=(3.2 * num_columns, 2.4 * num_rows), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for panel, name in zip(panels, names, strict=False):
        for result in by_task[name]:
            points = [(step, loss) for step, loss in result["losses"] if loss is not None]
            if points:
                panel.plot(*zip(*points, strict=True), linewidth=0.8, label=f"seed {result['seed']}")
        panel.set_title(TASKS[name].title, fontsize=9)
        panel.grid(alpha=0.3)
    for panel in list(panels)[len(names) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=120)

"""The tables and plots of results: rows and cells as data, and Markdown and pictures made of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electrakit.common.plots import MUTED, PALETTE, add_legend, draw_line, new_figure, to_png
from electrakit.common.words import DASH, count_runs, format_percent, markdown_table
from electrakit.finetune.published import PUBLISHED, REFERENCE, REFERENCE_SCORES
from electrakit.finetune.results import GlueAverage, GlueResults, JobResult, TaskResults
from electrakit.finetune.tasks import AVERAGED, TASKS


class ScoreNote(NamedTuple):
    """What must not be overlooked; some of it emphasised, before the rest."""

    text: str
    emphasis: str = ""

    def plain(self) -> str:
        return f"{self.emphasis} {self.text}".strip()

    def markdown(self) -> str:
        return f"**{self.emphasis}** {self.text}" if self.emphasis else self.text


class ScoreRow(NamedTuple):
    cells: list[str]
    kind: str = ""
    """`ours`, `spread` or `published` in the table of all models."""
    origin: str = ""
    """Stands after the first cell, in brackets or in small print."""
    scope: str = ""
    """The same for the last cell."""
    notes: list[ScoreNote] | None = None
    """The last column, in tables that have one of notes."""


class Column(NamedTuple):
    title: str
    is_text: bool = False
    on_terminal: bool = True
    """False for what a terminal has no room for."""


class ScoreTable(NamedTuple):
    columns: list[Column]
    rows: list[ScoreRow]

    def markdown(self) -> str:
        lines = []
        for row in self.rows:
            name, *cells = row.cells
            name = f"**{name}**" if row.kind == "ours" else name
            line = [f"{name} ({row.origin})" if row.origin else name, *cells]
            if row.scope:
                line[-1] += f" ({row.scope})"
            if row.notes is not None:
                line.append("; ".join(note.markdown() for note in row.notes) or DASH)
            lines.append(line)
        return markdown_table([column.title for column in self.columns], lines)


def models_table(results: GlueResults) -> ScoreTable:
    """The table that papers print: measured scores above, the published rows below."""
    tasks, average = results.tasks, results.average
    medians = [format_percent(tasks[name].median if name in tasks else None) for name in AVERAGED]
    spreads = [format_percent(tasks[name].sd if name in tasks else None) for name in AVERAGED]
    is_partial = not average.is_complete and average.value is not None
    scope = f"{len(average.tasks)} of {len(AVERAGED)} tasks" if is_partial else ""
    rows = [
        ScoreRow([Path(results.model).name, *medians, format_percent(average.value)], "ours", "ours", scope),
        ScoreRow(["standard deviation", *spreads, DASH], "spread"),
    ]
    for row in PUBLISHED:
        scores = [f"{score:.1f}" for score in row.scores] or [DASH] * len(AVERAGED)
        rows.append(ScoreRow([row.name, *scores, f"{row.mean:.1f}"], "published", f"published: {row.source}"))
    titles = ["model", *(TASKS[name].title for name in AVERAGED), "average"]
    return ScoreTable(list(map(Column, titles)), rows)


def tasks_table(tasks: Mapping[str, TaskResults]) -> ScoreTable:
    """Each task with its spread and its notes."""
    rows = []
    for task in tasks.values():
        scores = map(format_percent, (task.median, task.mean, task.sd, task.min, task.max))
        cells = [task.title, task.metric, *scores, str(task.best_seed), task.start_from or "the model"]
        rows.append(ScoreRow(cells, notes=notes_of(task)))
    columns = [
        *map(Column, ("task", "metric", "median", "mean", "sd", "min", "max")),
        Column("best seed", on_terminal=False),
        Column("begins with", is_text=True),
        Column("notes", is_text=True, on_terminal=False),
    ]
    return ScoreTable(columns, rows)


def notes_of(task: TaskResults) -> list[ScoreNote]:
    notes = list(map(ScoreNote, task.warnings))
    if task.collapsed:
        seeds = ", ".join(f"seed {seed}: {'; '.join(reasons)}" for seed, reasons in task.collapsed.items())
        notes.insert(0, ScoreNote(f"({seeds})", f"{len(task.collapsed)} of {len(task.seeds)} runs collapsed"))
    if task.num_undefined:
        notes.append(ScoreNote(f"{task.num_undefined} undefined scores count as 0"))
    return notes


def glue_markdown(results: GlueResults) -> str:
    """results.md."""
    lines = [
        f"# GLUE: {results.model}",
        "",
        f"{describe_scores(results)}. {average_note(results.average).markdown()}",
        "",
        models_table(results).markdown(),
        "",
        tasks_table(results.tasks).markdown(),
    ]
    for task in results.tasks.values():
        medians = [(split, *each) for split, by_metric in task.medians.items() for each in by_metric.items()]
        if len(medians) > 1:
            scores = [f"{split} {metric} {format_percent(value)}" for split, metric, value in medians]
            lines.append(f"\n{task.title}: {', '.join(scores)}.")
    if results.ensembles:
        lines.append(f"\n{describe_ensembles(results)}")
    lines += ["", results.submission, "", "![scores](scores.png)", "", "![training losses](losses.png)"]
    return "\n".join(lines) + "\n"


def describe_scores(results: GlueResults) -> str:
    return f"Dev scores × 100, the median of {count_runs(results.num_seeds)}"


def describe_ensembles(results: GlueResults) -> str:
    scores = [f"{TASKS[name].title} {format_percent(score)}" for name, score in results.ensembles.items()]
    return f"The ensemble of the best {results.ensemble} runs on dev: {', '.join(scores)}." if scores else ""


def average_note(average: GlueAverage) -> ScoreNote:
    if average.is_complete:
        return ScoreNote("The average is over the eight tasks; WNLI is left out, as usual.")
    names = ", ".join(TASKS[name].title for name in average.tasks) or "no task"
    emphasis = f"The average is over {len(average.tasks)} of {len(AVERAGED)} tasks"
    return ScoreNote(f"({names}): not the average of the papers.", emphasis)


# Of a run, a collapsed run and published scores.
RUN, COLLAPSED, REFERENCE_COLOUR = PALETTE[0], PALETTE[1], PALETTE[7]
DPI = 140


def plot_scores(results: GlueResults) -> bytes:
    """A PNG with a line for each task: each run a dot, a collapsed one a cross, the median a stroke, a published row diamonds."""
    tasks = results.tasks
    figure, (axes,) = new_figure(9, 1.5 + 0.42 * len(tasks))
    for place, (name, task) in enumerate(tasks.items()):
        axes.hlines(place, 100 * task.min, 100 * task.max, color=RUN, alpha=0.25, linewidth=5, zorder=1)
        for seed, score in zip(task.seeds, task.scores, strict=True):
            colour, marker = (COLLAPSED, "x") if str(seed) in task.collapsed else (RUN, "o")
            axes.scatter(100 * score, place, c=colour, marker=marker, s=34, alpha=0.75)
        axes.vlines(100 * task.median, place - 0.3, place + 0.3, color=RUN, linewidth=2)
        median = format_percent(task.median)
        axes.annotate(median, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=10)
        if name in REFERENCE_SCORES:
            look: dict[str, Any] = {"facecolors": "none", "edgecolors": REFERENCE_COLOUR, "linewidths": 1.5}
            axes.scatter(REFERENCE_SCORES[name], place, marker="D", s=42, zorder=4, **look)
    legend: dict[str, dict[str, Any]] = {
        "a run": {"marker": "o", "color": RUN},
        "a run that collapsed": {"marker": "x", "color": COLLAPSED},
        "median (the number)": {"marker": "|", "color": RUN},
        f"published: {REFERENCE.name} ({REFERENCE.source})": {
            "marker": "D",
            "color": REFERENCE_COLOUR,
            "markerfacecolor": "none",
        },
    }
    for label, mark in legend.items():
        axes.plot([], [], linestyle="none", label=label, **mark)
    axes.set_yticks(range(len(tasks)), [f"{task.title}  {task.metric}" for task in tasks.values()])
    axes.invert_yaxis()
    axes.set_xlim(right=100)
    axes.set_xlabel("dev score × 100", color=MUTED)
    axes.grid(visible=False, axis="y")
    _hide_left_edge(axes)
    figure.suptitle(f"GLUE: {Path(results.model).name}", x=0.01, ha="left", fontsize=12, fontweight="bold")
    add_legend(figure, loc="outside lower center", ncols=4)
    return to_png(figure, DPI)


def plot_losses(by_task: Mapping[str, Sequence[JobResult]]) -> bytes:
    """A PNG with the training loss of every run, a panel for each task; of collapsed runs dashed."""
    names = [name for name in TASKS if by_task.get(name)]
    num_columns = min(4, len(names))
    num_rows = -(-len(names) // num_columns)
    figure, panels = new_figure(max(4.0, 2.8 * num_columns), 0.5 + 2.2 * num_rows, num_rows, num_columns)
    for axes, name in zip(panels, names, strict=False):
        for result in by_task[name]:
            if result.finite_losses:
                colour, line_style = (COLLAPSED, "--") if result.collapsed else (RUN, "-")
                steps, losses = zip(*result.finite_losses, strict=True)
                draw_line(axes, steps, losses, colour, line_style=line_style)
        axes.set_title(f"{TASKS[name].title}, {count_runs(len(by_task[name]))}", loc="left")
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        _hide_left_edge(axes)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    figure.supxlabel("steps", fontsize=9, color=MUTED)
    figure.supylabel("training loss", fontsize=9, color=MUTED)
    return to_png(figure, DPI)


def _hide_left_edge(axes: Any) -> None:
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0, labelcolor=MUTED)

"""Makes results.html: the table, every run as a mark, every training curve."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from electrakit.common.templates import render
from electrakit.common.words import count_runs, format_percent
from electrakit.finetune.published import REFERENCE, REFERENCE_SCORES
from electrakit.finetune.results import FinetuneResult, GlueResults, JobResult, TaskResults
from electrakit.finetune.table import (
    Column,
    ScoreRow,
    ScoreTable,
    average_note,
    describe_ensembles,
    describe_scores,
    models_table,
    tasks_table,
)


def glue_page(results: GlueResults, by_task: Mapping[str, Sequence[JobResult]]) -> str:
    """Of all tasks of GLUE."""
    return _render(
        results.tasks,
        by_task,
        title=f"GLUE: {results.model}",
        about=f"{describe_scores(results)}; preset {Path(results.preset).name}.",
        average=average_note(results.average),
        small_print=f"{describe_ensembles(results)} {results.submission}".strip(),
        heading="The table",
        scores=models_table(results),
    )


def task_page(result: FinetuneResult, jobs: Sequence[JobResult], name: str) -> str:
    """Of one task. `name`: empty for the user's own task, which has no published scores."""
    num_runs = count_runs(len(jobs))
    rows = []
    for scores, origin in ((result.medians, f"median of {num_runs}"), (result.test or {}, "the best run")):
        for split, by_metric in scores.items():
            for metric, value in by_metric.items():
                rows.append(ScoreRow([f"{split}, {origin}", metric, format_percent(value)]))
    return _render(
        {name: result},
        {name: jobs},
        title=result.title,
        about=result.task,
        average=None,
        small_print=f"model {result.model}; preset {Path(result.preset).name}",
        heading="Scores × 100",
        scores=ScoreTable(list(map(Column, ("split", "metric", "score"))), rows),
    )


def _render(tasks: Mapping[str, TaskResults], by_task: Mapping[str, Sequence[JobResult]], **content: Any) -> str:
    published = {name: score for name, score in REFERENCE_SCORES.items() if name in tasks}
    lowest = min([99.0, *published.values(), *(100 * score for task in tasks.values() for score in task.scores)])
    return render(
        "electrakit.finetune",
        "results_page.html.jinja",
        **content,
        tasks=tasks,
        task_table=tasks_table(tasks),
        published=published,
        reference=REFERENCE,
        broad_plot=ScoresPlot(len(tasks), lowest, 860, 150, 60, 34, 8),
        narrow_plot=ScoresPlot(len(tasks), lowest, 340, 12, 12, 54, 16, is_narrow=True),
        loss_plots=[LossPlot(task.title, by_task[name]) for name, task in tasks.items()],
        percent=format_percent,
        runs=count_runs,
        zip=zip,
    )


@dataclass(frozen=True)
class ScoresPlot:
    """Where marks stand in the plot with a line for each task: its runs, their median, and a published score."""

    num_tasks: int
    lowest: float
    width: int
    left: int
    right: int
    height: int
    """Of one task."""
    top: int
    is_narrow: bool = False
    """For a phone: with the words above the lines."""

    @property
    def low(self) -> int:
        return math.floor(self.lowest / 10) * 10

    @property
    def ticks(self) -> range:
        return range(self.low, 101, 10 if self.low >= 0 else 20)

    @property
    def bottom(self) -> int:
        return self.top + self.height * self.num_tasks

    def across(self, score: float) -> float:
        return self.left + (self.width - self.left - self.right) * (score - self.low) / (100 - self.low)

    def y(self, place: int) -> float:
        return self.top + self.height * (place + 0.5)


@dataclass(frozen=True)
class LossPlot:
    """Where points stand in the plot of the training losses of a task's runs."""

    title: str
    results: Sequence[JobResult]
    width: int = 240
    height: int = 150
    left: int = 30
    bottom: int = 20

    @cached_property
    def _points(self) -> list[tuple[float, float]]:
        return [point for result in self.results for point in result.finite_losses]

    @cached_property
    def last_step(self) -> int:
        return int(max((step for step, _ in self._points), default=1))

    @cached_property
    def max_loss(self) -> float:
        return max((loss for _, loss in self._points), default=1.0) or 1.0

    def y(self, loss: float) -> float:
        return (self.height - self.bottom) - (self.height - self.bottom - 10) * loss / self.max_loss

    def points(self, result: JobResult) -> str:
        """As SVG's polyline takes them."""
        scale = (self.width - self.left) / self.last_step
        return " ".join(f"{self.left + scale * step:.1f},{self.y(loss):.1f}" for step, loss in result.finite_losses)

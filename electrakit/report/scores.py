"""GLUE scores of runs beside published ones, and both against the compute of their training."""

import contextlib
from dataclasses import dataclass

from electrakit.finetune.published import ELECTRA_BASE, PAPER, PUBLISHED
from electrakit.finetune.results import GlueResults, GlueTaskResults
from electrakit.finetune.tasks import AVERAGED, TASKS
from electrakit.model.counts import count_parameters, flops_per_step
from electrakit.runs import layout
from electrakit.runs.files import RunFiles

TITLES = {name: TASKS[name].title for name in AVERAGED}


@dataclass(frozen=True)
class PublishedPoint:
    """A published mean over the eight tasks' dev scores, and the compute of its training."""

    name: str
    flops: float
    score: float
    source: str
    is_of_paper: bool
    fraction: float | None
    """The share of ELECTRA-Small's steps, for the points of that one training."""

    @property
    def label(self) -> str:
        """Short, beside its point."""
        return self.name if self.fraction in (None, 1) else f"{100 * self.fraction:g} %"


@dataclass(frozen=True)
class RunPoint:
    """The compute of a run so far, and its mean over the eight tasks if it has all of them."""

    run: int
    """Its place among the runs."""
    name: str
    flops: float
    score: float | None


@dataclass(frozen=True)
class TaskScore:
    """Of the fine-tuning runs of a task, × 100."""

    median: float
    deviation: float | None
    """None if there is one run only."""


@dataclass(frozen=True)
class GlueRow:
    """The GLUE scores of a run."""

    name: str
    place: int
    """Its place among the runs."""
    scores: dict[str, TaskScore]
    average: float | None
    is_complete: bool
    """Whether the average is over all eight tasks."""
    num_tasks: int
    num_seeds: int
    notes: list[str]


def published_points() -> list[PublishedPoint]:
    """The rows whose training is known. Compute is counted as for runs: from the settings."""
    known = [(row, row.training()) for row in (*PUBLISHED, ELECTRA_BASE) if row.training is not None]
    points = [
        PublishedPoint(
            name=row.name,
            flops=flops_per_step(config) * config.steps * (row.fraction or 1),
            score=row.mean,
            source=row.source,
            is_of_paper=row.source == PAPER,
            fraction=row.fraction,
        )
        for row, config in known
    ]
    return sorted(points, key=lambda point: point.fraction or 2)


def flops_of(run: RunFiles) -> float | None:
    """What it has computed so far, counted as the paper counts; None if its settings do not say."""
    return None if run.config is None else flops_per_step(run.config) * run.step


def parameters_of(run: RunFiles) -> int | None:
    """Those that are kept after training: the discriminator without its head."""
    return None if run.config is None else count_parameters(run.config).encoder


def glue_rows(runs: dict[str, RunFiles]) -> list[GlueRow]:
    """One for each run that has scores."""
    rows = []
    for place, (name, run) in enumerate(runs.items()):
        results = GlueResults()
        with contextlib.suppress(ValueError):  # damaged: as if there were none
            results = GlueResults.from_json(run.glue)
        tasks = {key: task for key, task in results.tasks.items() if key in TITLES}
        if tasks:
            rows.append(
                GlueRow(
                    name=name,
                    place=place,
                    scores={key: TaskScore(100 * task.median, _percent(task.sd)) for key, task in tasks.items()},
                    average=_percent(results.average.value),
                    is_complete=results.average.is_complete,
                    num_tasks=len(results.average.tasks),
                    num_seeds=results.num_seeds,
                    notes=[note for task in tasks.values() for note in _notes(task)],
                )
            )
    return rows


def glue_notes(runs: dict[str, RunFiles], rows: list[GlueRow]) -> list[str]:
    """What must not be overlooked about the scores, and how to get those that are missing."""
    notes = [f"{row.name}: {note}" for row in rows for note in row.notes]
    notes += [
        f"{row.name}: the mean is over {row.num_tasks} of 8 tasks, not that of the papers"
        for row in rows
        if not row.is_complete
    ]
    missing = [name for name in runs if name not in {row.name for row in rows}]
    if missing:
        place = (runs[missing[0]].path / layout.GLUE_RESULTS).parent
        notes.append(
            f"No scores yet of {', '.join(missing)}: electra glue MODEL --data glue --out {place} puts them here"
        )
    return notes


def compute_points(runs: dict[str, RunFiles]) -> list[RunPoint]:
    averages = {row.name: row.average for row in glue_rows(runs) if row.is_complete}
    return [
        RunPoint(place, name, flops, averages.get(name))
        for place, (name, run) in enumerate(runs.items())
        if (flops := flops_of(run))
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _notes(task: GlueTaskResults) -> list[str]:
    num_collapsed, num_seeds = len(task.collapsed), len(task.seeds)
    notes = [f"{task.title}: {num_collapsed} of {num_seeds} fine-tuning runs collapsed"] if num_collapsed else []
    return [*notes, "; ".join(task.warnings)] if task.warnings else notes

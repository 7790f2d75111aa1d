"""GLUE scores of runs beside published ones, and both against the compute of their training."""

from dataclasses import dataclass
from typing import Any

from electrakit.finetune.published import COLUMNS, ELECTRA_BASE, PAPER, PUBLISHED
from electrakit.model.counts import count_parameters, flops_per_step
from electrakit.runs import layout
from electrakit.runs.files import RunFiles, number

TITLES = dict(zip(COLUMNS, ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"), strict=True))


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
    """Of the fine-tuning runs of a task, × 100; None where the results have no number."""

    median: float | None
    deviation: float | None


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
        tasks = _tasks(run)
        if not tasks:
            continue
        average = run.glue.get("average") if run.glue else None
        average = average if isinstance(average, dict) else {}
        rows.append(
            GlueRow(
                name=name,
                place=place,
                scores={
                    key: TaskScore(_percent(task.get("median")), _percent(task.get("sd")))
                    for key, task in tasks.items()
                },
                average=_percent(average.get("value")),
                is_complete=average.get("is_complete") is True,
                num_tasks=len(_list(average.get("tasks"))),
                num_seeds=max(len(_list(task.get("seeds"))) for task in tasks.values()),
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


def _tasks(run: RunFiles) -> dict[str, dict[str, Any]]:
    tasks = (run.glue or {}).get("tasks")
    if not isinstance(tasks, dict):
        return {}
    return {name: task for name, task in tasks.items() if name in TITLES and isinstance(task, dict)}


def _percent(value: Any) -> float | None:
    share = number(value)
    return None if share != share else 100 * share


def _notes(task: dict[str, Any]) -> list[str]:
    num_collapsed, num_seeds = len(_list(task.get("collapsed"))), len(_list(task.get("seeds")))
    title = task.get("title", "a task")
    notes = [f"{title}: {num_collapsed} of {num_seeds} fine-tuning runs collapsed"] if num_collapsed else []
    warnings = "; ".join(map(str, _list(task.get("warnings"))))
    return [*notes, warnings] if warnings else notes


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | dict) else []

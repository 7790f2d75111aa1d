"""GLUE scores of runs beside published ones, and both against the compute of their training."""

import contextlib
import functools
from dataclasses import dataclass, replace

from electrakit.finetune.published import ELECTRA_BASE, PAPER, PUBLISHED
from electrakit.finetune.results import GlueResults
from electrakit.finetune.tasks import AVERAGED, TASKS
from electrakit.measure.results import NetworkMeasures, measures_from_json
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
class GlueRow:
    """The GLUE scores of a run."""

    name: str
    place: int
    """Its place among the runs."""
    results: GlueResults


@functools.cache
def published_points() -> tuple[PublishedPoint, ...]:
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
    return tuple(sorted(points, key=lambda point: point.fraction or 2))


def flops_of(run: RunFiles) -> float | None:
    """What it has computed so far, counted as the paper counts; None if its settings do not say."""
    return None if run.config is None else flops_per_step(run.config) * run.step


def num_parameters_of(run: RunFiles) -> int | None:
    """Those that are kept after training: the discriminator without its head."""
    return None if run.config is None else count_parameters(run.config).encoder


def glue_rows(runs: dict[str, RunFiles]) -> list[GlueRow]:
    """One for each run that has scores. Damaged results are none."""
    rows = []
    for place, (name, run) in enumerate(runs.items()):
        with contextlib.suppress(ValueError):
            results = GlueResults.from_json(run.glue)
            if results.tasks.keys() & TITLES.keys():
                rows.append(GlueRow(name, place, results))
    return rows


def newest_measures(runs: dict[str, RunFiles]) -> list[NetworkMeasures]:
    """What `electra measure` found at the newest step that it looked at, of each run. A damaged measure.json is none."""
    found = []
    for name, run in runs.items():
        with contextlib.suppress(ValueError):
            measures = measures_from_json(run.measured)
            newest = max((one.step or 0 for one in measures), default=0)
            found += [replace(one, model=name) for one in measures if (one.step or 0) == newest]
    return found


def glue_notes(runs: dict[str, RunFiles], rows: list[GlueRow]) -> list[str]:
    """What must not be overlooked about the scores, and how to get those that are missing."""
    notes = []
    for row in rows:
        for task in [task for name, task in row.results.tasks.items() if name in TITLES]:
            if task.collapsed:
                count = f"{len(task.collapsed)} of {len(task.seeds)}"
                notes.append(f"{row.name}: {task.title}: {count} fine-tuning runs collapsed")
            if task.warnings:
                notes.append(f"{row.name}: {'; '.join(task.warnings)}")
    notes += [
        f"{row.name}: the mean is over {len(row.results.average.tasks)} of 8 tasks, not that of the papers"
        for row in rows
        if not row.results.average.is_complete
    ]
    missing = [name for name in runs if name not in {row.name for row in rows}]
    if missing:
        place = (runs[missing[0]].path / layout.GLUE_RESULTS).parent
        notes.append(
            f"No scores yet of {', '.join(missing)}: electra glue MODEL --data glue --out {place} puts them here"
        )
    return notes


def compute_points(runs: dict[str, RunFiles]) -> list[RunPoint]:
    averages = {row.name: row.results.average for row in glue_rows(runs)}
    scores = {
        name: 100 * average.value
        for name, average in averages.items()
        if average.is_complete and average.value is not None
    }
    return [
        RunPoint(place, name, flops, scores.get(name))
        for place, (name, run) in enumerate(runs.items())
        if (flops := flops_of(run))
    ]

"""Runs in; their GLUE scores beside published ones, and GLUE against compute, out."""

from dataclasses import dataclass, fields
from typing import Any

from electrakit.errors import UserError
from electrakit.evaluate.published import COLUMNS, PUBLISHED
from electrakit.model.counts import count_parameters, flops_per_step
from electrakit.network_config import NetworkConfig
from electrakit.presets import alectra_small, electra_base, electra_small, electra_small_owt, mlm_small
from electrakit.pretrain_config import ObjectiveConfig, OptimConfig, PretrainConfig, override
from electrakit.run_files import RunFiles, number

TITLES = dict(zip(COLUMNS, ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"), strict=True))


@dataclass(frozen=True)
class Point:
    """A mean over the eight tasks' dev scores, and what was computed to get there."""

    name: str
    flops: float
    score: float
    source: str
    part: float | None = None
    """The share of ELECTRA-Small's training, for the points of that one line."""

    @property
    def label(self) -> str:
        """Short, beside its point."""
        return self.name if self.part is None or self.part == 1 else f"{100 * self.part:g} %"


def published_points() -> list[Point]:
    """Those whose training is known well enough to count; all counted in the same way as runs are, from the settings."""
    paper, small = "Clark et al. 2020", electra_small()
    parts = ((0.0625, 74.1), (0.125, 76.0), (0.25, 77.7), (0.5, 79.0))
    trained = [
        ("BERT-Small", mlm_small(), 75.1, paper),
        ("ELECTRA-Base", electra_base(), 85.0, paper),
        ("ELECTRA-Small-OWT", small, 80.36, "google-research/electra"),
        ("ELECTRA-Small-OWT, RoPE", electra_small(batch_size=256, steps=500_000), 80.3, "junnyu"),
        ("ELECTRA-Small-OWT", electra_small_owt(), 77.9, "lmtuners"),
        ("ALECTRA-Small-OWT", alectra_small(), 79.5, "lmtuners"),
    ]
    whole = flops_per_step(small) * small.steps
    return [
        *(
            Point(f"ELECTRA-Small, {100 * part:g} % of training", whole * part, score, paper, part)
            for part, score in parts
        ),
        Point("ELECTRA-Small", whole, 79.9, paper, 1.0),
        *(Point(name, flops_per_step(config) * config.steps, score, source) for name, config, score, source in trained),
    ]


def settings_of(run: RunFiles) -> PretrainConfig | None:
    """As they were read when the run began. What an older or a newer version says that this one does not know is left out."""
    parts = {
        "discriminator": NetworkConfig,
        "generator": NetworkConfig,
        "objective": ObjectiveConfig,
        "optim": OptimConfig,
    }
    known = _known(run.settings, PretrainConfig)
    for name, kind in parts.items():
        if isinstance(known.get(name), dict):
            known[name] = _known(known[name], kind)
    try:
        return override(PretrainConfig(), known)
    except (UserError, TypeError, AttributeError):
        return None


def _known(values: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {entry.name: values[entry.name] for entry in fields(kind) if entry.name in values}


def flops_of(run: RunFiles) -> float | None:
    """What it has computed so far, counted as the paper counts; None if its settings do not say."""
    config = settings_of(run)
    return None if config is None else flops_per_step(config) * run.step


def parameters_of(run: RunFiles) -> int | None:
    """Those that are kept after training: the discriminator without its head."""
    config = settings_of(run)
    return None if config is None else count_parameters(config).encoder


def glue_rows(runs: dict[str, RunFiles]) -> list[dict[str, Any]]:
    """One row for each run that has scores: medians and standard deviations × 100, and what must not be overlooked."""
    rows = []
    for name, run in runs.items():
        tasks = _tasks(run)
        if not tasks:
            continue
        scores = {task: (_percent(tasks[task].get("median")), _percent(tasks[task].get("sd"))) for task in tasks}
        average = run.glue.get("average") if run.glue else None
        average = average if isinstance(average, dict) else {}
        num_seeds = max(len(_list(task.get("seeds"))) for task in tasks.values())
        rows.append(
            {
                "name": name,
                "scores": scores,
                "average": _percent(average.get("value")),
                "is_complete": average.get("is_complete") is True,
                "num_tasks": len(_list(average.get("tasks"))),
                "num_seeds": num_seeds,
                "notes": [note for task in tasks.values() for note in _notes(task)],
            }
        )
    return rows


def published_rows() -> list[dict[str, Any]]:
    """The same for rows of papers and repositories."""
    return [
        {
            "name": row.name,
            "source": row.source,
            "scores": dict(zip(COLUMNS, row.scores, strict=True)) if row.scores else {},
            "average": row.mean,
        }
        for row in PUBLISHED
    ]


def compute_points(runs: dict[str, RunFiles]) -> list[dict[str, Any]]:
    """Where each run stands: its FLOPs, and its average if it has all eight tasks."""
    averages = {row["name"]: row["average"] for row in glue_rows(runs) if row["is_complete"]}
    return [
        {"run": place, "name": name, "flops": flops, "score": averages.get(name)}
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

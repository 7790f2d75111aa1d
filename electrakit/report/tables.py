"""The tables of the report: how far runs are, key metrics, settings and how they differ, environment and data."""

import hashlib
import json
import math
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from electrakit.common.words import DASH, format_duration, format_number, format_percent, format_share
from electrakit.doctor.evidence import Evidence, entropy
from electrakit.report.curves import CHARTS, GROUPS, Chart, ChartGroup, NumberFormat
from electrakit.report.scores import flops_of, num_parameters_of
from electrakit.runs import layout
from electrakit.runs.files import Environment, MetricsLine, RunFiles, column, number

Runs = dict[str, RunFiles]
"""By the names that tell them apart."""


class Row(NamedTuple):
    """A label, and its cells: one for each run where runs are compared."""

    label: str
    cells: list[str]


class Values(NamedTuple):
    """A row before it is written: a value for each run, None where it is not known."""

    label: str
    values: list[Any]
    written: Callable[[Any], str]


class Table(NamedTuple):
    title: str
    rows: list[Row]


class CurveTable(NamedTuple):
    """Curves of a run as a table; the labels of its rows are steps."""

    run: str
    title: str
    header: list[str]
    rows: list[Row]


class RunState(NamedTuple):
    """How far a run is: a word for a badge, and a line."""

    word: Literal["complete", "waiting", "silent", "running"]
    line: str


# How far


def state_of(run: RunFiles) -> RunState:
    seconds = seconds_of(run)
    parts = [steps_text(run), f"{format_number(run.step * run.tokens_per_step)} tokens"]
    if seconds is not None:
        parts.append(format_duration(seconds))
    if run.is_complete:
        return RunState("complete", " · ".join(parts))
    if not run.lines:
        return RunState("waiting", "no metrics yet: the log of this run is empty")
    written = written_at(run)
    if time.time() - written > max(120.0, 10 * seconds_between_lines(run)):
        # A date, not an age: it stays true however old the page is.
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(written))
        parts.append(f"nothing was written since {since}; if it has stopped, the same command resumes it")
        return RunState("silent", " · ".join(parts))
    if (left := seconds_left(run)) is not None:
        parts.append(f"about {format_duration(left)} left")
    return RunState("running", " · ".join(parts))


def steps_text(run: RunFiles) -> str:
    budget, steps = run.stored.budget, run.stored.steps
    if budget is not None:
        return f"{run.step:,} steps in a budget of {budget}"
    if steps is None or (run.is_complete and steps == run.step):
        return f"{run.step:,} steps"
    return f"{run.step:,} of {steps:,} steps ({format_share(run.step / max(1, steps))})"


def seconds_of(run: RunFiles) -> float | None:
    """Of training, over all its starts."""
    times = column(run.train[-5:], "seconds")
    times = times[np.isfinite(times)]
    return float(times[-1]) if len(times) else None


def seconds_between_lines(run: RunFiles) -> float:
    gaps = np.diff(column(run.train[-20:], "seconds"))
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if len(gaps) else 60.0


def written_at(run: RunFiles) -> float:
    try:
        return (run.path / layout.METRICS_FILE).stat().st_mtime
    except OSError:
        return time.time()


def seconds_left(run: RunFiles) -> float | None:
    """By the pace of the last lines, or by the budget."""
    seconds, config = seconds_of(run), run.config
    if seconds is None or config is None:
        return None
    if config.budget_seconds is not None:
        return max(0.0, config.budget_seconds - seconds)
    first, last = run.train[-20:][0], run.train[-1]
    pace = (number(last.get("seconds")) - number(first.get("seconds"))) / max(1, last["step"] - first["step"])
    return (config.steps - run.step) * pace if pace > 0 else None


# Metrics


ONE_NETWORK = {
    "mlm_loss": "Mean cross-entropy of the words that were masked. Lower is better.",
    "gen_acc": "How often the network's best prediction is the masked word.",
}


def charts_for(runs: Runs) -> list[Chart]:
    """Those that there are metrics for. Where runs have one network, it is no generator, and the total is its loss."""
    lines = [line for run in runs.values() for line in (*run.train[:100], *run.valid[:100])]
    shown = [chart for chart in CHARTS if any(chart.key in line for line in lines)]
    if not is_one_network(runs):
        return shown
    words = [(chart, ONE_NETWORK.get(chart.key, chart.shows)) for chart in shown if chart.key != "loss"]
    return [replace(chart, title=chart.short_title, shows=shows) for chart, shows in words]


def is_one_network(runs: Runs) -> bool:
    return all(Evidence(run).kind == "mlm" for run in runs.values())


def group_titles(runs: Runs) -> dict[ChartGroup, str]:
    return {**GROUPS, "generator": "Masked language model"} if is_one_network(runs) else GROUPS


def key_metrics(runs: Runs) -> list[Table]:
    """The last validation of each network, and the training."""
    tables = []
    for group, title in group_titles(runs).items():
        charts = [chart for chart in CHARTS if chart.group == group]
        if group == "training":
            charts = [chart for chart in charts if chart.key in ("loss", "replaced_rate") and not is_one_network(runs)]
        rows = [validation_row(runs, chart) for chart in charts]
        if group == "discriminator":
            entropies = [base_rate_entropy(run) for run in runs.values()]
            rows.insert(1, numbers("Loss of always predicting the base rate", entropies, "nats"))
        elif group == "training":
            rows += training_rows(runs)
        tables.append(Table(title, known_rows(rows)))
    return [table for table in tables if table.rows]


def validation_row(runs: Runs, chart: Chart) -> Values:
    return numbers(chart.short_title, [last_valid(run, chart.key) for run in runs.values()], chart.format)


def training_rows(runs: Runs) -> list[Values]:
    every = list(runs.values())
    flops = [flops_of(run) or None for run in every]
    return [
        numbers("Last validation at step", [last_valid(run, "step") for run in every], "count"),
        numbers("Lowest validation loss at step", map(best_validation, every), "count"),
        numbers("Tokens a second (median)", map(median_speed, every), "count"),
        Values("Compute so far, FLOPs", flops, lambda each: f"{each:.2e}".replace("+", "")),
        Values("Parameters kept after training", [num_parameters_of(run) for run in every], format_number),
    ]


def numbers(label: str, values: Iterable[Any], format: NumberFormat) -> Values:
    """What is not a finite number is not known."""
    known = [None if math.isnan(number(value)) else value for value in values]
    return Values(label, known, partial(format_value, format=format))


def known_rows(rows: Iterable[Values]) -> list[Row]:
    """Those with a value that is known."""
    return [
        Row(row.label, [DASH if value is None else row.written(value) for value in row.values])
        for row in rows
        if any(value is not None for value in row.values)
    ]


def last_valid(run: RunFiles, key: str) -> float:
    return number(run.valid[-1].get(key)) if run.valid else math.nan


def best_validation(run: RunFiles) -> int | None:
    known = [(loss, line["step"]) for line in run.valid if not math.isnan(loss := number(line.get("loss")))]
    return min(known)[1] if known else None


def median_speed(run: RunFiles) -> float | None:
    speeds = Evidence(run).curve("tokens_per_second").values
    return float(np.median(speeds)) if len(speeds) else None


def base_rate_entropy(run: RunFiles) -> float:
    """The discriminator's loss if it always predicts the share of replaced tokens; NaN where it is scored otherwise."""
    rate = last_valid(run, run.base_rate or "")
    return float(entropy(np.array(rate))) if 0 < rate < 1 else math.nan


NUM_SAMPLED = 24
"""Rows of a curve's table."""
SAMPLED = (
    *("mlm_loss", "gen_acc", "disc_loss", "disc_acc", "disc_auc", "replaced_rate"),
    *("auc_frequency", "auc_neighbours", "auc_swapped"),
    *("loss", "lr", "grad_norm", "tokens_per_second"),
)


def curve_tables(runs: Runs) -> list[CurveTable]:
    return [
        sampled_lines(name, title, run, lines)
        for name, run in runs.items()
        for title, lines in (("validations", run.valid), ("training", run.train))
        if lines
    ]


def sampled_lines(name: str, title: str, run: RunFiles, lines: Sequence[MetricsLine]) -> CurveTable:
    """Lines at even distances, the first and the last among them."""
    known = {chart.key: chart for chart in charts_for({name: run})}
    charts = [known[key] for key in SAMPLED if key in known and any(key in line for line in lines[:100])]
    places = sorted({round(place * (len(lines) - 1) / (NUM_SAMPLED - 1)) for place in range(NUM_SAMPLED)})
    rows = [
        Row(f"{line['step']:,}", [format_value(line.get(chart.key), chart.format) for chart in charts])
        for line in (lines[place] for place in places)
    ]
    return CurveTable(name, title, ["Step", *(chart.title for chart in charts)], rows)


# Settings


def settings_rows(runs: Runs) -> tuple[list[Row], list[Row]]:
    """Those that differ, and all. The folder of a run always differs and is left out of the first."""
    rows = rows_by_name([flatten(run.settings) for run in runs.values()], "not set")
    differing = [row for row in rows if len(set(row.cells)) > 1 and row.label != "run"]
    return differing, rows


def rows_by_name(columns: list[dict[str, str]], missing: str) -> list[Row]:
    names = dict.fromkeys(name for values in columns for name in values)
    return [Row(name, [values.get(name, missing) for values in columns]) for name in names]


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"optim": {"lr": 1e-3}} -> {"optim.lr": "0.001"}"""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            flat[f"{prefix}{name}"] = "none" if value is None else shown
    return flat


def environment_rows(runs: Runs) -> list[Row]:
    return rows_by_name([flatten(environment_of(run)) for run in runs.values()], DASH)


def environment_of(run: RunFiles) -> dict[str, Any]:
    """In the order in which it is asked for; the command as one types it."""
    environment = run.environment
    if environment == Environment():
        return {}
    names = ("device", "machine", "processes", "threads", "commit", "folder")
    values = {name: getattr(environment, name) for name in names}
    known = {name: value for name, value in values.items() if value is not None or name == "commit"}
    command = {"command": shlex.join(map(str, environment.command))} if environment.command else {}
    return {**known, **environment.versions, **command}


def data_rows(runs: Runs) -> list[Row]:
    """What each run read. The hash of its shards tells whether it was the same."""
    every = list(runs.values())
    rows = [
        Values("shards", [run.stored.data or None for run in every], str),
        Values("hash of the shards", [shards_hash(run) for run in every], str),
        *(
            numbers(f"rows, {split}", [run.data.rows.get(split) for run in every], "count")
            for split in ("train", "valid", "test")
        ),
        numbers("tokens in a row", [run.data.length or None for run in every], "count"),
        numbers("vocabulary", [run.data.vocab_size or None for run in every], "count"),
        numbers("times each row was seen", [Evidence(run).epochs for run in every], "rate"),
    ]
    return known_rows(rows)


def shards_hash(run: RunFiles) -> str | None:
    """Of the names and hashes of its files, short."""
    files = run.data.files
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12] if files else None


# Numbers for people


def format_value(value: Any, format: NumberFormat) -> str:
    """A dash for anything that is not a finite number."""
    value = number(value)
    if math.isnan(value):
        return DASH
    match format:
        case "percent":
            return f"{format_percent(value)} %"
        case "count":
            return f"{value:,.0f}"
        case "rate":
            return f"{value:.3g}"
        case _:
            return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"

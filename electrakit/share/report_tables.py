"""Runs in, what is said of them in words and tables out: how far they are, key figures, settings and how these differ."""

import hashlib
import itertools
import json
import math
import shlex
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

from electrakit.doctor.run_evidence import entropy
from electrakit.run_files import Floats, RunFiles, column, number
from electrakit.share.charts import CHARTS, Chart, Format
from electrakit.share.report_glue import flops_of, parameters_of, settings_of

Runs = dict[str, RunFiles]
"""By the names that tell them apart."""
Row = tuple[str, list[str]]
"""A label, and a cell for each run."""
DASH = "–"


# How far


def state_of(run: RunFiles) -> tuple[str, str]:
    """One word for a badge, and a line for people."""
    seconds = seconds_of(run)
    parts = [steps_text(run), f"{short(run.step * run.tokens_per_step)} tokens"]
    if seconds is not None:
        parts.append(duration(seconds))
    if run.is_complete:
        return "complete", " · ".join(parts)
    if not run.lines:
        return "waiting", "no figures yet: the log of this run is empty"
    written = written_at(run)
    if time.time() - written > max(120.0, 10 * seconds_between_lines(run)):
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(written))  # stays true however old the page is
        silent = f"nothing was written since {since}; if it has stopped, the same command goes on with it"
        return "silent", " · ".join([*parts, silent])
    left = seconds_left(run)
    return "running", " · ".join([*parts, *([] if left is None else [f"about {duration(left)} left"])])


def steps_text(run: RunFiles) -> str:
    budget, steps = run.settings.get("budget"), number(run.settings.get("steps"))
    if budget is not None:
        return f"{run.step:,} steps in a budget of {budget}"
    if math.isnan(steps) or (run.is_complete and steps == run.step):
        return f"{run.step:,} steps"
    return f"{run.step:,} of {steps:,.0f} steps ({run.step / max(1.0, steps):.0%})"


def seconds_of(run: RunFiles) -> float | None:
    """Of training, over all its starts."""
    known = [value for line in reversed(run.train[-5:]) if not math.isnan(value := number(line.get("seconds")))]
    return known[0] if known else None


def seconds_between_lines(run: RunFiles) -> float:
    times = [number(line.get("seconds")) for line in run.train[-20:]]
    gaps = [after - before for before, after in itertools.pairwise(times) if after > before]
    return statistics.median(gaps) if gaps else 60.0


def written_at(run: RunFiles) -> float:
    try:
        return (run.path / "metrics.jsonl").stat().st_mtime
    except OSError:
        return time.time()


def seconds_left(run: RunFiles) -> float | None:
    """By the pace of the last lines, or by the budget."""
    seconds, config = seconds_of(run), settings_of(run)
    if seconds is None or config is None:
        return None
    if config.budget_seconds is not None:
        return max(0.0, config.budget_seconds - seconds)
    first, last = run.train[-20:][0], run.train[-1]
    pace = (number(last.get("seconds")) - number(first.get("seconds"))) / max(1, last["step"] - first["step"])
    return (config.steps - run.step) * pace if pace > 0 else None


# Figures


ONE_NETWORK = {
    "mlm_loss": "How surprised the network is by the words that were masked: their mean cross-entropy. Lower is better.",
    "gen_acc": "How often the network's best guess is the masked word.",
}


def charts_for(runs: Runs) -> list[Chart]:
    """Those that there are figures for. Where runs have one network, it is no generator, and the total is its loss."""
    lines = [line for run in runs.values() for line in (*run.train[:100], *run.valid[:100])]
    shown = [chart for chart in CHARTS if any(chart.key in line for line in lines)]
    if not is_one_network(runs):
        return shown
    words = [(chart, ONE_NETWORK.get(chart.key, chart.shows)) for chart in shown if chart.key != "loss"]
    return [replace(chart, title=short_title(chart), shows=shows) for chart, shows in words]


def is_one_network(runs: Runs) -> bool:
    return all(kind_of(run) == "mlm" for run in runs.values())


def key_figures(runs: Runs) -> list[tuple[str, list[Row]]]:
    """Groups of rows: what the last validation says of each network, and of the training."""
    groups = {
        "Generator": ["mlm_loss", "gen_acc", "sampled_acc"],
        "Discriminator": ["disc_loss", "disc_acc", "disc_auc", "disc_recall", "disc_precision"],
    }
    if is_one_network(runs):
        groups = {"Masked language model": ["mlm_loss", "gen_acc"]}
    charts = {chart.key: chart for chart in CHARTS}
    tables = []
    for title, keys in groups.items():
        rows = [
            (short_title(charts[key]), [shown(last_valid(run, key), charts[key].format) for run in runs.values()])
            for key in keys
        ]
        if title == "Discriminator":
            rows.insert(
                1,
                (
                    "Loss of guessing the base rate",
                    [shown(base_rate_entropy(run), "nats") for run in runs.values()],
                ),
            )
        tables.append((title, known_rows(rows)))
    shared = [
        (charts[key].title, [shown(last_valid(run, key), charts[key].format) for run in runs.values()])
        for key in ("loss", "replaced_rate")
        if not is_one_network(runs)
    ]
    tables.append(("Training", known_rows([*shared, *training_rows(runs)])))
    return [(title, rows) for title, rows in tables if rows]


def short_title(chart: Chart) -> str:
    """Under the name of its network."""
    title = chart.title.removesuffix(" (validation)")
    for name in ("Generator ", "Discriminator "):
        title = title.removeprefix(name)
    return title[:1].upper() + title[1:]


def training_rows(runs: Runs) -> list[Row]:
    every = list(runs.values())
    speeds = [column(run.train, "tokens_per_second") for run in every]
    sizes = [parameters_of(run) for run in every]
    best = [best_validation(run) for run in every]
    return [
        ("Last validation at step", [f"{run.valid[-1]['step']:,}" if run.valid else DASH for run in every]),
        ("Lowest validation loss at step", [DASH if step is None else f"{step:,}" for step in best]),
        ("Tokens a second (median)", [shown(median(values), "count") for values in speeds]),
        (
            "Compute so far, FLOPs",
            [DASH if not (flops := flops_of(run)) else f"{flops:.2e}".replace("+", "") for run in every],
        ),
        ("Parameters kept after training", [DASH if size is None else short(size) for size in sizes]),
    ]


def known_rows(rows: list[Row]) -> list[Row]:
    return [row for row in rows if any(cell != DASH for cell in row[1])]


def last_valid(run: RunFiles, key: str) -> float:
    return number(run.valid[-1].get(key)) if run.valid else math.nan


def best_validation(run: RunFiles) -> int | None:
    known = [(loss, line["step"]) for line in run.valid if not math.isnan(loss := number(line.get("loss")))]
    return min(known)[1] if known else None


def base_rate_entropy(run: RunFiles) -> float:
    """The discriminator's loss without having learned anything; not a number where it is scored otherwise."""
    rate = last_valid(run, run.base_rate or "")
    if not 0 < rate < 1:
        return math.nan
    return float(entropy(np.array(rate)))


def kind_of(run: RunFiles) -> str:
    objective = run.settings.get("objective")
    return str(objective.get("kind", "electra")) if isinstance(objective, dict) else "electra"


def median(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else math.nan


SAMPLED = (
    "mlm_loss",
    "gen_acc",
    "disc_loss",
    "disc_acc",
    "disc_auc",
    "replaced_rate",
    "loss",
    "lr",
    "grad_norm",
    "tokens_per_second",
)


def sampled_lines(run: RunFiles, split: str, num_lines: int = 24) -> tuple[list[str], list[list[str]]]:
    """The curves as a table: its head, and lines at even distances, the first and the last among them."""
    lines = run.train if split == "train" else run.valid
    known = charts_for({"": run})
    charts = [
        chart for key in SAMPLED for chart in known if chart.key == key and any(key in line for line in lines[:100])
    ]
    places = sorted({round(place * (len(lines) - 1) / (num_lines - 1)) for place in range(num_lines)}) if lines else []
    cells = [
        [f"{lines[place]['step']:,}", *(shown(number(lines[place].get(chart.key)), chart.format) for chart in charts)]
        for place in places
    ]
    return ["Step", *(chart.title.removesuffix(" (validation)") for chart in charts)], cells


# Settings


def settings_rows(runs: Runs) -> tuple[list[Row], list[Row]]:
    """Those that differ, and all. A run's own folder always differs, and says nothing."""
    flat = [flatten(run.settings) for run in runs.values()]
    names = list(dict.fromkeys(name for values in flat for name in values))
    rows = [(name, [values.get(name, "not set") for values in flat]) for name in names]
    differing = [(name, cells) for name, cells in rows if len(set(cells)) > 1 and name != "run"]
    return differing, rows


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"optim": {"lr": 1e-3}} -> {"optim.lr": "0.001"}"""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = (
                "none" if value is None else value if isinstance(value, str) else json.dumps(value)
            )
    return flat


def environment_rows(runs: Runs) -> list[Row]:
    rows = [flatten(environment_of(run)) for run in runs.values()]
    names = list(dict.fromkeys(name for values in rows for name in values))
    return [(name, [values.get(name, DASH) for values in rows]) for name in names]


def environment_of(run: RunFiles) -> dict[str, Any]:
    """In the order in which it is asked for; the command as one types it."""
    versions = run.environment.get("versions")
    known = {name: value for name, value in run.environment.items() if name != "versions"}
    known |= versions if isinstance(versions, dict) else {}
    command = known.pop("command", None)
    if isinstance(command, list) and all(isinstance(part, str) for part in command):
        command = shlex.join(command)
    first: dict[str, Any] = {
        name: known.pop(name) for name in ("device", "machine", "processes", "threads", "commit") if name in known
    }
    return {**first, **known, **({} if command is None else {"command": command})}


def data_rows(runs: Runs) -> list[Row]:
    """What each run read. The hash of its shards tells whether it was the same."""
    return known_rows(
        [
            ("shards", [str(run.settings.get("data") or DASH) for run in runs.values()]),
            ("hash of the shards", [shards_hash(run) for run in runs.values()]),
            *(
                (f"rows, {split}", [rows_of(run, split) for run in runs.values()])
                for split in ("train", "valid", "test")
            ),
            ("tokens in a row", [shown(number(run.data.get("length")), "count") for run in runs.values()]),
            ("vocabulary", [shown(number(run.data.get("vocab_size")), "count") for run in runs.values()]),
            ("times each row was seen", [times_seen(run) for run in runs.values()]),
        ]
    )


def shards_hash(run: RunFiles) -> str:
    """Of the names and hashes of its files, short."""
    files = run.data.get("files")
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:12] if files else DASH


def rows_of(run: RunFiles, split: str) -> str:
    rows = run.data.get("rows")
    return shown(number(rows.get(split)), "count") if isinstance(rows, dict) else DASH


def times_seen(run: RunFiles) -> str:
    rows, batch = run.data.get("rows"), number(run.settings.get("batch_size"))
    num_rows = number(rows.get("train")) if isinstance(rows, dict) else math.nan
    return f"{run.step * batch / num_rows:.3g}" if num_rows > 0 and not math.isnan(batch) else DASH


# Numbers for people


def shown(value: float, format: Format) -> str:
    if math.isnan(value):
        return DASH
    match format:
        case "percent":
            return f"{100 * value:.1f} %"
        case "count":
            return f"{value:,.0f}"
        case "rate":
            return f"{value:.3g}"
        case _:
            return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def short(value: float) -> str:
    """1234567 -> 1.23 M"""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """3725 -> 1 h 2 min"""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

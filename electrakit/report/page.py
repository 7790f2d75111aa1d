"""Renders the HTML report of runs: one file that needs nothing else. Tables are plain HTML, the script inside draws the curves."""

import base64
import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import resources
from typing import Any

import electrakit
from electrakit.common.plots import PALETTE
from electrakit.common.templates import render
from electrakit.doctor.findings import Finding
from electrakit.doctor.run import examine_run
from electrakit.finetune.published import PUBLISHED
from electrakit.measure.results import measures_notes, measures_table
from electrakit.report import tables
from electrakit.report.curves import buckets_for, curves
from electrakit.report.scores import TITLES, compute_points, glue_notes, glue_rows, newest_measures, published_points
from electrakit.report.tables import Runs, RunState

SCRIPTS = ("charts_scales.js", "charts.js", "report_compute.js", "report.js")
NUM_COLOURS = len(PALETTE)
BADGES = {"serious": "serious", "warning": "warning", "fine": "", "info": "good to know"}
"""Of the levels of findings, in the order in which they are shown."""


@dataclass(frozen=True)
class RunHeader:
    """How the page names a run."""

    name: str
    short_name: str
    """Where there are many runs: the beginning and the end of a long name, where names of one family differ."""
    colour: str
    """A class of the style sheet; after all colours were used, lines are dashed."""
    state: RunState


@dataclass(frozen=True)
class FindingCard:
    """A finding of the doctor, or a sentence where there is none."""

    run: RunHeader
    level: str
    text: str
    finding: Finding | None = None


def page(runs: Runs, live: float | None = None) -> bytes:
    """The file. Names, settings and everything else that comes from a run are escaped: text, never markup.

    live: seconds after which an open page reloads itself.
    """
    style, script = read("report.css"), "\n".join(map(read, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{csp_hash(script)}'; style-src '{csp_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    headers = run_headers(runs)
    rows = glue_rows(runs)
    measures = newest_measures(runs)
    differing, settings = tables.settings_rows(runs)
    content = render(
        "electrakit.report",
        "report.html.jinja",
        policy=policy,
        style=style,
        script=script,
        script_data=embedded(script_data(runs, live)),
        made=f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %Z}",
        live=live,
        version=electrakit.__version__,
        runs=headers,
        badges=BADGES,
        findings=findings(runs, headers),
        metric_tables=tables.key_metrics(runs) if any(run.lines for run in runs.values()) else [],
        chart_groups=chart_groups(runs),
        curve_tables=tables.curve_tables(runs),
        measures=measures_table(measures) if measures else None,
        measures_notes=measures_notes(measures),
        tasks=TITLES,
        glue_rows=rows,
        glue_notes=glue_notes(runs, rows),
        # Rows of a part of a training are points below the table.
        published=[row for row in PUBLISHED if row.fraction in (None, 1)],
        run_points=compute_points(runs),
        published_points=published_points(),
        differing_settings=differing,
        settings=settings,
        environment=tables.environment_rows(runs),
        data=tables.data_rows(runs),
    )
    return content.encode("utf-8", errors="replace")  # names of files need not be UTF-8


def read(name: str) -> str:
    return resources.files("electrakit.report").joinpath(name).read_text(encoding="utf-8")


def csp_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def script_data(runs: Runs, live: float | None) -> dict[str, Any]:
    """What the script draws."""
    num_buckets = buckets_for(len(runs))
    return {
        "runs": [{"name": name, **curves(run, num_buckets)} for name, run in runs.items()],
        "charts": [{**asdict(chart), "title": chart.full_title} for chart in tables.charts_for(runs)],
        "published": [{**asdict(point), "label": point.label} for point in published_points()],
        "points": [asdict(point) for point in compute_points(runs)],
        "live": live,
    }


def run_headers(runs: Runs) -> list[RunHeader]:
    return [
        RunHeader(
            name=name,
            short_name=f"{name[:9]}…{name[-9:]}" if len(runs) > 3 and len(name) > 20 else name,
            colour=f"run{place % NUM_COLOURS}{' again' * (place >= NUM_COLOURS)}",
            state=tables.state_of(run),
        )
        for place, (name, run) in enumerate(runs.items())
    ]


def findings(runs: Runs, headers: list[RunHeader]) -> list[FindingCard]:
    """What the doctor found, the worst first."""
    cards = []
    for run, header in zip(runs.values(), headers, strict=True):
        if not run.lines:
            cards.append(FindingCard(header, "info", "No metrics yet."))
            continue
        found = examine_run(run).findings
        for finding in found:
            cards.append(FindingCard(header, finding.level, finding.title[:1].upper() + finding.title[1:], finding))
        if all(finding.level == "info" for finding in found):
            cards.append(FindingCard(header, "fine", "Nothing wrong was found."))
    return sorted(cards, key=lambda card: list(BADGES).index(card.level))


def chart_groups(runs: Runs) -> dict[str, str]:
    """The groups of charts that there are curves for, and their titles."""
    drawn = {chart.group for chart in tables.charts_for(runs)}
    return {group: title for group, title in tables.group_titles(runs).items() if group in drawn}

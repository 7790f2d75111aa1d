"""Runs in, one HTML file out that needs nothing else: tables are written here, curves are drawn by the script inside."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from html import escape
from importlib import resources
from typing import Any

import electrakit
from electrakit.doctor.run import examine_run
from electrakit.share.charts import buckets_for, curves
from electrakit.share.report_glue import TITLES, compute_points, glue_rows, published_points, published_rows
from electrakit.share.report_tables import (
    DASH,
    Row,
    Runs,
    charts_for,
    data_rows,
    environment_rows,
    is_one_network,
    key_figures,
    sampled_lines,
    settings_rows,
    state_of,
)

GROUPS = {"generator": "Generator", "discriminator": "Discriminator", "training": "Training"}
SCRIPTS = ("charts_scales.js", "charts.js", "report_compute.js", "report.js")
MOST_COLOURS = 8
LEVELS = {"serious": "serious", "warning": "warning", "info": "good to know"}


def page(runs: Runs, live: float | None = None) -> bytes:
    """The whole file. Names, settings and everything else that comes from a run are text to it, never markup.

    live: seconds after which an open page loads itself again.
    """
    style = read("report.css")
    script = "\n".join(map(read, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src '{fingerprint(script)}'; style-src '{fingerprint(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    now = datetime.now().astimezone()
    made = f"Made {now:%Y-%m-%d %H:%M:%S %Z}"
    if live is not None:
        made += f" · live: looks again every {live:g} s"
    parts = {
        "policy": text(policy),
        "title": text(f"{', '.join(runs)} – ElectraKit report"),
        "heading": heading(runs),
        "made": text(made),
        "refresh": "" if live is None else f'<noscript><meta http-equiv="refresh" content="{live:g}"></noscript>',
        "style": style,
        "script": script,
        "body": body(runs),
        "footer": f"Made by ElectraKit {text(electrakit.__version__)}. This file needs no network, and sends nothing.",
        "data": embedded(data_of(runs, live)),
    }
    template = read("report.html")
    whole = re.sub(
        r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template
    )  # in one go: what is put in is not read again
    return whole.encode("utf-8", errors="replace")  # names of files need not be UTF-8


def read(name: str) -> str:
    return resources.files("electrakit.share").joinpath(name).read_text(encoding="utf-8")


def fingerprint(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    plain = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return plain.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def data_of(runs: Runs, live: float | None) -> dict[str, Any]:
    """What the script draws."""
    num_buckets = buckets_for(len(runs))
    return {
        "runs": [{"name": name, **curves(run, num_buckets)} for name, run in runs.items()],
        "charts": [asdict(chart) for chart in charts_for(runs)],
        "published": [{**asdict(point), "label": point.label} for point in published_points()],
        "points": compute_points(runs),
        "live": live,
    }


# Sections


def body(runs: Runs) -> str:
    sections = [states(runs), findings(runs), figures(runs), charts(runs), glue(runs), settings(runs)]
    sections += [environment(runs), data(runs)]
    return "\n".join(sections)


def heading(runs: Runs) -> str:
    names = list(runs)
    if len(names) > 4:
        return f"{len(names)} runs"
    return " <span class='versus'>and</span> ".join(bdi(name) for name in names)


def states(runs: Runs) -> str:
    items = []
    for place, (name, run) in enumerate(runs.items()):
        word, line = state_of(run)
        items.append(
            f"<li class='{colour(place)}'>{chip()}<div><strong>{bdi(name)}</strong> <span class='badge {word}'>{word}</span> "
            f"<span class='line'>{text(line)}</span></div></li>"
        )
    return f"<section id='state' aria-label='State of the runs'><ul class='states'>{''.join(items)}</ul></section>"


def findings(runs: Runs) -> str:
    """The doctor's, on top: what is wrong is what people look for."""
    cards: list[tuple[int, str]] = []
    for place, (name, run) in enumerate(runs.items()):
        of_run = f"<span class='of {colour(place)}'>{chip()}{bdi(name)}</span>" if len(runs) > 1 else ""
        found = examine_run(run) if run.lines else []
        for finding in found:
            badge = f"<span class='badge {finding.level}'>{LEVELS[finding.level]}</span>"
            card = (
                f"<article class='finding {finding.level}'><h3>{badge} {text(capital(finding.title))} {of_run}</h3>"
                f"<p class='seen'>{text(finding.seen)}</p><p>{text(finding.means)}</p>"
                f"<p><strong>What to do:</strong> {text(finding.advice)}</p></article>"
            )
            cards.append((list(LEVELS).index(finding.level), card))
        if not run.lines:
            cards.append((2, f"<article class='finding info'><p>No figures yet. {of_run}</p></article>"))
        elif all(finding.level == "info" for finding in found):
            cards.append((1, f"<article class='finding fine'><p>Nothing wrong was found. {of_run}</p></article>"))
    worst_first = sorted(cards, key=lambda card: card[0])
    content = f"<div class='findings'>{''.join(card for _, card in worst_first)}</div>"
    return section("findings", "What the doctor says", content)


def figures(runs: Runs) -> str:
    groups = key_figures(runs)
    if not groups or not any(run.lines for run in runs.values()):
        return section("figures", "Key figures", "<p>No figures yet: they come with the first validation.</p>")
    tables = "".join(
        scrolled(f"<table>{run_heads(runs, title)}<tbody>{table_rows(rows)}</tbody></table>", f"Key figures: {title}")
        for title, rows in groups
    )
    note = "<p class='note'>Of the last validation: rows that were not trained on.</p>"
    return section("figures", "Key figures", f"{note}<div class='tables'>{tables}</div>")


def charts(runs: Runs) -> str:
    """Places for the script, and the same as tables."""
    legend = "".join(
        f"<button type='button' class='run {colour(place)}' data-run='{place}' aria-pressed='true'>{chip()}{bdi(name)}</button>"
        for place, name in enumerate(runs)
    )
    choices = "".join(
        f"<label><input type='radio' name='axis' value='{axis}'{' checked' if axis == 'steps' else ''}><span>{axis}</span></label>"
        for axis in ("steps", "tokens", "time")
    )
    controls = (
        f"<div id='controls' class='needs-script'><div class='legend' role='group' aria-label='Runs'>{legend}</div>"
        f"<fieldset class='axis'><legend>Over</legend>{choices}</fieldset>"
        "<label class='smooth'>Smoothing <input type='range' id='smooth' min='0' max='10' step='1' value='3'>"
        "<output id='smooth-value' for='smooth'></output></label>"
        "<label class='raw'><input type='checkbox' id='raw' checked> raw</label>"
        "<button type='button' id='unzoom' hidden>Show everything</button></div>"
        "<p class='note needs-script key'><span class='key-train'></span> training <span class='key-valid'></span> validation "
        "<span class='key-base'></span> without having learned anything "
        "<span class='hint'>· drag over a chart to zoom in, arrow keys read values</span></p>"
    )
    drawn = {chart.group for chart in charts_for(runs)}
    titles = {**GROUPS, **({"generator": "Masked language model"} if is_one_network(runs) else {})}
    panels = "".join(
        f"<div class='group needs-script' data-group='{group}'><h3>{title}</h3><div class='panels'></div></div>"
        for group, title in titles.items()
        if group in drawn
    )
    no_script = "<noscript><p class='note'>Scripts are switched off, and one draws the curves; the tables hold the figures.</p></noscript>"
    return section("curves", "Curves", controls + no_script + panels + tables_of_curves(runs))


def tables_of_curves(runs: Runs) -> str:
    tables = []
    for name, run in runs.items():
        for split, title in (("valid", "validations"), ("train", "training")):
            heads, lines = sampled_lines(run, split)
            if lines:
                head = "".join(f"<th scope='col'>{text(one)}</th>" for one in heads)
                rows = "".join(f"<tr><th scope='row'>{line[0]}</th>{cells(line[1:])}</tr>" for line in lines)
                table = f"<table class='numbers'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
                tables.append(f"<h4>{bdi(name)}: {title}</h4>{scrolled(table, f'{name}: {title}')}")
    return details("tables", "The curves as tables", "".join(tables)) if tables else ""


def glue(runs: Runs) -> str:
    """Ours first, then what others published, each marked as that."""
    rows = glue_rows(runs)
    published = [
        row for row in published_rows() if row["scores"] or "%" not in row["name"]
    ]  # parts of a training are points below
    heads = "".join(f"<th scope='col'>{title}</th>" for title in (*TITLES.values(), "Mean"))
    ours = "".join(our_row(row, list(runs).index(row["name"])) for row in rows)
    theirs = "".join(
        f"<tr class='published'><th scope='row'>{text(row['name'])} <small>published: {text(row['source'])}</small></th>"
        f"{cells(score(row['scores'].get(task)) for task in TITLES)}<td>{score(row['average'])}</td></tr>"
        for row in published
    )
    notes = [f"{row['name']}: {note}" for row in rows for note in row["notes"]]
    notes += [
        f"{row['name']}: the mean is over {row['num_tasks']} of 8 tasks, not that of the papers"
        for row in rows
        if not row["is_complete"]
    ]
    missing = [name for name in runs if name not in {row["name"] for row in rows}]
    if missing:
        path = next(iter(runs.values())).path if len(missing) == len(runs) else runs[missing[0]].path
        notes.append(
            f"No scores yet of {', '.join(missing)}: electra glue MODEL --data glue --out {path}/glue puts them here"
        )
    said = f"<ul class='notes'>{''.join(f'<li>{text(note)}</li>' for note in notes)}</ul>" if notes else ""
    table = f"<table class='numbers glue'><thead><tr><td></td>{heads}</tr></thead><tbody>{ours}{theirs}</tbody></table>"
    points = "".join(
        f"<tr><th scope='row'>{text(point.name)} <small>published: {text(point.source)}</small></th><td>{point.flops:.2e}</td>"
        f"<td>{point.score:.1f}</td></tr>"
        for point in published_points()
    )
    points = (
        "".join(
            f"<tr><th scope='row'>{bdi(point['name'])}</th><td>{point['flops']:.2e}</td><td>{score(point['score'])}</td></tr>"
            for point in compute_points(runs)
        )
        + points
    )
    compute = (
        "<h3>GLUE against compute</h3><p class='note'>Operations of the whole training, counted as Clark et al. count them, "
        "from the settings of each run and of each published model; the score is the mean of the eight tasks on the dev sets.</p>"
        "<div id='compute' class='panel wide needs-script'></div>"
        + details(
            "compute-table",
            "The same as a table",
            scrolled(
                "<table class='numbers'><thead><tr><td></td><th scope='col'>FLOPs</th><th scope='col'>Mean</th></tr></thead>"
                f"<tbody>{points}</tbody></table>",
                "GLUE against compute",
            ),
        )
    )
    intro = "<p class='note'>Scores on the dev sets × 100: the median of several fine-tuning runs ± their standard deviation.</p>"
    return section("glue", "GLUE", intro + said + scrolled(table, "GLUE scores") + compute)


def our_row(row: dict[str, Any], place: int) -> str:
    scores = []
    for task in TITLES:
        median, deviation = row["scores"].get(task, (None, None))
        spread = "" if deviation is None or median is None else f" <small>± {deviation:.1f}</small>"
        scores.append(f"<td>{score(median)}{spread}</td>")
    seeds = f" <small>{row['num_seeds']} seed{'s' * (row['num_seeds'] != 1)}</small>"
    mean = score(row["average"]) + ("" if row["is_complete"] else " <small>(not all)</small>")
    return (
        f"<tr class='ours {colour(place)}'><th scope='row'>{chip()}{bdi(row['name'])}{seeds}</th>{''.join(scores)}"
        f"<td>{mean}</td></tr>"
    )


def settings(runs: Runs) -> str:
    differing, every = settings_rows(runs)
    parts = []
    if len(runs) > 1:
        if differing:
            table = f"<table>{run_heads(runs)}<tbody>{table_rows(differing)}</tbody></table>"
            parts.append(f"<h3>What differs</h3>{scrolled(table, 'Settings that differ')}")
        else:
            parts.append("<p>All settings are the same.</p>")
    table = f"<table>{run_heads(runs)}<tbody>{table_rows(every)}</tbody></table>"
    parts.append(details("settings-all", f"All {len(every)} settings", scrolled(table, "All settings")))
    return section("settings", "Settings", "".join(parts))


def environment(runs: Runs) -> str:
    rows = environment_rows(runs)
    table = scrolled(f"<table>{run_heads(runs)}<tbody>{table_rows(rows)}</tbody></table>", "Environment")
    return section("environment", "Environment", table if rows else "<p>Not known: there is no environment.json.</p>")


def data(runs: Runs) -> str:
    table = f"<table>{run_heads(runs)}<tbody>{table_rows(data_rows(runs))}</tbody></table>"
    return section("data", "Data", scrolled(table, "Data"), "data-section")


# Pieces


def text(value: Any) -> str:
    return escape(str(value), quote=True)


def bdi(name: str) -> str:
    """A name that others gave: letters that turn the direction of writing end with it."""
    return f"<bdi>{text(name)}</bdi>"


def cut(name: str, num_runs: int) -> str:
    """Where there are many, how a name begins, and how it ends, where names of one family differ."""
    return f"{name[:9]}…{name[-9:]}" if num_runs > 3 and len(name) > 20 else name


def capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def chip() -> str:
    return "<span class='chip' aria-hidden='true'></span>"


def colour(place: int) -> str:
    """The class of a run's colour; after all colours were used, its lines are dashed."""
    return f"run{place % MOST_COLOURS}{' again' * (place >= MOST_COLOURS)}"


def score(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"


def cells(values: Iterable[str]) -> str:
    return "".join(f"<td>{text(value)}</td>" for value in values)


def table_rows(rows: Sequence[Row]) -> str:
    return "".join(f"<tr><th scope='row'>{text(label)}</th>{cells(values)}</tr>" for label, values in rows)


def run_heads(runs: Runs, title: str = "") -> str:
    heads = "".join(
        f"<th scope='col' class='{colour(place)}'>{chip()}<bdi title='{text(name)}'>{text(cut(name, len(runs)))}</bdi></th>"
        for place, name in enumerate(runs)
    )
    corner = f"<th scope='col'>{text(title)}</th>" if title else "<td></td>"
    return f"<thead><tr>{corner}{heads}</tr></thead>"


def scrolled(table: str, label: str) -> str:
    """Wide tables move inside their own frame, never the page."""
    return f"<div class='scroll' role='region' tabindex='0' aria-label='{text(label)}'>{table}</div>"


def details(key: str, title: str, content: str) -> str:
    return f"<details id='{key}'><summary>{text(title)}</summary>{content}</details>"


def section(key: str, title: str, content: str, identity: str | None = None) -> str:
    return f"<section id='{identity or key}' aria-labelledby='{key}-title'><h2 id='{key}-title'>{text(title)}</h2>{content}</section>"

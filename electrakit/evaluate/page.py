"""The protocol's figures and its runs in, one HTML page out: the table, every run as a mark, every training curve.

It needs no other file, no network and no script, and follows the reader's choice of light or dark.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from electrakit.evaluate.published import COLUMNS, PUBLISHED, SHOWN
from electrakit.evaluate.report import (
    DASH,
    average_in_words,
    average_of,
    ensemble_in_words,
    notes_of,
    percent,
    runs_in_words,
)
from electrakit.evaluate.results import Result
from electrakit.evaluate.tasks import TASKS

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --dim: #656d76; --line: #d8dee4; --ground: #ffffff; --card: #f6f8fa;
  --run: #0969da; --bad: #d1242f; --other: #8250df; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #8d96a0; --line: #30363d; --ground: #0d1117; --card: #161b22;
  --run: #58a6ff; --bad: #ff7b72; --other: #bc8cff; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p { margin: .4rem 0; } .dim, caption, figcaption { color: var(--dim); font-size: .875rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .55rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; font-size: .875rem; } th:first-child, td:first-child, td.text, th.text { text-align: left; }
td.text { font-size: .875rem; } td.notes { white-space: normal; min-width: 15rem; } caption { text-align: left; padding-bottom: .4rem; }
tr.ours td { font-weight: 600; background: var(--card); } tr.spread td { background: var(--card); color: var(--dim); }
tr.published td { color: var(--dim); padding-block: .2rem; }
small { display: block; color: var(--dim); font-size: .75rem; font-weight: 400; line-height: 1.2; }
.bad { color: var(--bad); font-weight: 600; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(13.5rem, 1fr)); gap: 1rem; } figure { margin: 0; }
svg { width: 100%; height: auto; display: block; overflow: visible; } svg text { fill: var(--dim); font-size: 12px; }
svg .name { fill: var(--ink); } svg .grid { stroke: var(--line); } svg .run { fill: var(--run); fill-opacity: .6; }
svg .range { stroke: var(--run); stroke-opacity: .35; stroke-width: 5; stroke-linecap: round; }
svg .median { stroke: var(--run); stroke-width: 2.5; }
svg .cross { stroke: var(--bad); stroke-width: 2; } svg .known { fill: none; stroke: var(--other); stroke-width: 1.8; }
svg .curve { fill: none; stroke: var(--run); stroke-opacity: .65; stroke-width: 1.4; }
svg .curve.cross { stroke: var(--bad); stroke-dasharray: 4 2; } svg.narrow { display: none; }
@media (max-width: 40rem) {
  svg.broad { display: none; } svg.narrow { display: block; max-width: 30rem; }
  th:first-child, td:first-child { position: sticky; left: 0; background: var(--ground); white-space: normal; min-width: 7rem;
    font-size: .875rem; }
  .tasks, .tasks tbody { display: block; } .tasks tr:first-child { display: none; }
  .tasks tr { display: grid; grid-template-columns: repeat(4, 1fr); padding: .5rem 0; border-bottom: 1px solid var(--line); }
  .tasks td { padding: .15rem 0; border: 0; text-align: left; white-space: normal; min-width: 0; }
  .tasks td::before { content: attr(data-name); display: block; color: var(--dim); font-size: .75rem; }
  .tasks td:first-child { position: static; font-size: 1rem; font-weight: 600; } .tasks td:first-child::before { content: none; }
  .tasks td:first-child, .tasks td.notes { grid-column: 1 / -1; overflow-wrap: anywhere; } .tasks td.none { display: none; }
}
"""


def page(figures: dict[str, Any], results: dict[str, Sequence[Result]]) -> str:
    """Of all tasks of GLUE."""
    tasks = figures["tasks"]
    num_seeds = max((len(task["seeds"]) for task in tasks.values()), default=0)
    about = f"Dev scores × 100, the median of {runs_in_words(num_seeds)}; preset {Path(str(figures['preset'])).name}."
    parts = [
        f"<p>{escape(about)} {bold(average_in_words(figures['average']))}</p>",
        f'<p class="dim">{escape(" ".join([ensemble_in_words(figures), figures["submission"]]).strip())}</p>',
        *collapsed_lines(tasks),
        "<h2>The table</h2>",
        main_table(figures),
        *details(tasks, results),
    ]
    return whole(f"GLUE: {figures['model']}", parts)


def page_of_task(figures: dict[str, Any], results: Sequence[Result], name: str) -> str:
    """Of one task, which may be the user's own."""
    tasks = {name: figures}
    scores = {**figures["medians"], **figures.get("test", {})}
    rows = [row_of(["split", "metric", "score"], tag="th")]
    for split, each in scores.items():
        kind = "the best run" if split in figures.get("test", {}) else f"median of {runs_in_words(len(results))}"
        rows += [row_of([f"{escape(split)}, {kind}", metric, percent(value)]) for metric, value in each.items()]
    parts = [
        f"<p>{escape(figures['task'])}</p>",
        f'<p class="dim">model {escape(str(figures["model"]))}; preset {escape(Path(str(figures["preset"])).name)}</p>',
        *collapsed_lines(tasks),
        "<h2>Scores × 100</h2>",
        f'<div class="wide"><table>{"".join(rows)}</table></div>',
        *details(tasks, {name: results}),
    ]
    return whole(figures["title"], parts)


def whole(title: str, parts: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n'


def details(tasks: dict[str, Any], results: dict[str, Sequence[Result]]) -> list[str]:
    """Every run, every task, every curve."""
    return [
        "<h2>Every run</h2>",
        legend(has_published=any(name in COLUMNS for name in tasks)),
        scores_plot(tasks),
        scores_plot(tasks, is_narrow=True),
        "<h2>Each task</h2>",
        task_table(tasks),
        "<h2>Training losses</h2>",
        '<div class="curves">',
        *(curves(task["title"], results[name]) for name, task in tasks.items()),
        "</div>",
    ]


def bold(text: str) -> str:
    """Markdown's **words** as HTML."""
    pieces = escape(text).split("**")
    return "".join(f"<strong>{piece}</strong>" if number % 2 else piece for number, piece in enumerate(pieces))


def collapsed_lines(tasks: dict[str, Any]) -> list[str]:
    return [
        f'<p class="bad">{escape(task["title"])}: {len(task["collapsed"])} of {len(task["seeds"])} runs collapsed; '
        "they are in the median.</p>"
        for task in tasks.values()
        if task["collapsed"]
    ]


def row_of(cells: Sequence[str], kind: str = "", tag: str = "td") -> str:
    return f'<tr class="{kind}">' + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def main_table(figures: dict[str, Any]) -> str:
    """Ours above, what others have published below, each row marked."""
    tasks = figures["tasks"]
    rows = [row_of(["model", *(TASKS[name].title for name in COLUMNS), "average"], tag="th")]
    for figure, kind, name, last in (
        (
            "median",
            "ours",
            f"{escape(Path(figures['model']).name)}<small>ours</small>",
            small_scope(average_of(figures["average"])),
        ),
        ("sd", "spread", "standard deviation", DASH),
    ):
        cells = [percent(tasks[task][figure]) if task in tasks else DASH for task in COLUMNS]
        rows.append(row_of([name, *cells, last], kind))
    for row in PUBLISHED:
        cells = [f"{score:.1f}" for score in row.scores] or [DASH] * len(COLUMNS)
        name = f"{escape(row.name)}<small>published: {escape(row.source)}</small>"
        rows.append(row_of([name, *cells, f"{row.mean:.1f}"], "published"))
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def small_scope(average: str) -> str:
    """What stands in brackets, below the number and smaller."""
    value, _, scope = average.partition(" (")
    return value + (f"<small>{scope.removesuffix(')')}</small>" if scope else "")


def task_table(tasks: dict[str, Any]) -> str:
    """Where there is no room for so many columns, each row is a card, and each cell says what it is."""
    names = ("task", "metric", "median", "mean", "sd", "min", "max", "best seed")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = [f'<tr>{head}<th class="text">begins with</th><th class="text">notes</th></tr>']
    for task in tasks.values():
        cells = [
            escape(task["title"]),
            task["metric"],
            *(percent(task[name]) for name in names[2:7]),
            str(task["best_seed"]),
        ]
        notes = "; ".join(bold(note) for note in notes_of(task)).replace("<strong>", '<strong class="bad">')
        kind = "text notes" if notes else "text notes none"
        begin = escape(task["start_from"] or "the model")
        texts = f'<td class="text" data-name="begins with">{begin}</td><td class="{kind}" data-name="notes">{notes or DASH}</td>'
        figures = (f'<td data-name="{name}">{cell}</td>' for name, cell in zip(names, cells, strict=True))
        rows.append("<tr>" + "".join(figures) + texts + "</tr>")
    return f'<div class="wide"><table class="tasks">{"".join(rows)}</table></div>'


def legend(has_published: bool) -> str:
    marks = [
        ('<circle class="run" cx="8" cy="8" r="5"/>', "a run"),
        (cross(8, 8), "a run that collapsed"),
        ('<line class="median" x1="8" x2="8" y1="1" y2="15"/>', "the median"),
    ]
    if has_published:
        marks.append((diamond(8, 8), f"published: {escape(SHOWN.name)} ({escape(SHOWN.source)})"))
    said = (
        f'<svg viewBox="0 0 16 16" style="width:1em;display:inline;vertical-align:-.12em">{mark}</svg> {words}'
        for mark, words in marks
    )
    return f'<p class="dim">{" &emsp; ".join(said)}</p>'


def cross(x: float, y: float) -> str:
    return f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'


def diamond(x: float, y: float) -> str:
    return f'<path class="known" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>'


def scores_plot(tasks: dict[str, Any], is_narrow: bool = False) -> str:
    """A line for each task: its runs from the worst to the best, the median, and what others have published.

    `is_narrow`: for a phone, with the words above the lines.
    """
    width, left, right, height, top = (340, 12, 12, 54, 16) if is_narrow else (860, 150, 60, 34, 8)
    known = {name: SHOWN.scores[place] for place, name in enumerate(COLUMNS) if name in tasks}
    lowest = min([0.99, *(score for task in tasks.values() for score in task["scores"])])
    low = math.floor(min([100 * lowest, *known.values()]) / 10) * 10
    bottom = top + height * len(tasks)

    def across(score: float) -> float:
        return left + (width - left - right) * (score - low) / (100 - low)

    step = 10 if low >= 0 else 20
    parts = []
    for tick in range(low, 101, step):
        x = across(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    for place, (name, task) in enumerate(tasks.items()):
        y = top + height * (place + 0.5)
        x, words_y, anchor = (0, y - 17, "start") if is_narrow else (left - 14, y + 4, "end")
        parts.append(f'<text class="name" x="{x}" y="{words_y:.1f}" text-anchor="{anchor}">{escape(task["title"])}')
        parts.append(f'<tspan fill="var(--dim)"> {task["metric"]}</tspan></text>')
        ends = across(100 * task["min"]), across(100 * task["max"])
        parts.append(f'<line class="range" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        for seed, score in zip(task["seeds"], task["scores"], strict=True):
            x, is_bad = across(100 * score), str(seed) in task["collapsed"]
            mark = cross(x, y) if is_bad else f'<circle class="run" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
            words = f"{task['title']}, seed {seed}: {percent(score)}{', collapsed' if is_bad else ''}"
            parts.append(f"<g>{mark}<title>{escape(words)}</title></g>")
        if name in known:
            parts.append(diamond(across(known[name]), y))
        x = across(100 * task["median"])
        parts.append(f'<line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 11:.1f}" y2="{y + 11:.1f}"/>')
        x = width if is_narrow else width - 8
        parts.append(f'<text class="name" x="{x}" y="{words_y:.1f}" text-anchor="end">{percent(task["median"])}</text>')
    kind = "narrow" if is_narrow else "broad"
    about = f'class="{kind}" viewBox="0 0 {width} {bottom + 24}" role="img" aria-label="dev scores of all runs"'
    return f"<svg {about}>{''.join(parts)}</svg>"


def curves(title: str, results: Sequence[Result]) -> str:
    """The training loss of each run of a task."""
    width, height, left, bottom = 240, 150, 30, 20
    points = {result["seed"]: [(s, loss) for s, loss in result["losses"] if loss is not None] for result in results}
    last = max((step for pairs in points.values() for step, _ in pairs), default=1)
    most = max((loss for pairs in points.values() for _, loss in pairs), default=1.0) or 1.0
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = (height - bottom) - (height - bottom - 10) * share
        parts.append(f'<line class="grid" x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end">{most * share:.2g}</text>')
    parts.append(f'<text x="{left}" y="{height - 4}">0</text>')
    parts.append(f'<text x="{width}" y="{height - 4}" text-anchor="end">{last:,} steps</text>')
    for result in results:
        path = " ".join(
            f"{left + (width - left) * step / last:.1f},{(height - bottom) - (height - bottom - 10) * loss / most:.1f}"
            for step, loss in points[result["seed"]]
        )
        kind, words = ("curve cross", ", collapsed") if result["collapsed"] else ("curve", "")
        parts.append(f'<polyline class="{kind}" points="{path}"><title>seed {result["seed"]}{words}</title></polyline>')
    caption = f"<figcaption>{escape(title)}, {runs_in_words(len(results))}</figcaption>"
    return f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>{caption}</figure>'

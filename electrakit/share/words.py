"""Figures in, Markdown and words out, as people read them in a card."""

import json
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def code(place: str, *lines: str) -> str:
    """A block that runs as it stands: imports, the model's place, the rest."""
    blank = lines.index("")
    return "\n".join(["```python", *lines[:blank], "", f"name = {json.dumps(place)}", *lines[blank + 1 :], "```"])


def in_words(number: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f}"


def millions(number: int) -> str:
    return f"{number / 1e6:.3g} million" if number >= 1e5 else f"{number:,}"


def size(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:,.1f} kB"


def duration(seconds: float) -> str:
    if seconds < 90:
        return counted(round(seconds), "second")
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def runs(number: int) -> str:
    return "one run" if number == 1 else counted(number, "run")

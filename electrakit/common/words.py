"""Formats numbers, sizes, durations and tables for people to read."""

from collections.abc import Iterable, Sequence

DASH = "–"  # where there is nothing to show


def format_number(number: float) -> str:
    """1234567 -> 1.23 M"""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number:.3g}"


def format_words(number: float) -> str:
    """1234567 -> 1.23 million, for a sentence."""
    for factor, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= factor:
            return f"{number / factor:.3g} {name}"
    return f"{number:.0f}"


def format_size(num_bytes: float) -> str:
    """1234567 -> 1.23 MB"""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= factor:
            value = num_bytes / factor
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes / 1e3:,.1f} kB"


def format_duration(seconds: float) -> str:
    """3725 -> 1 h 2 min"""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_clock(seconds: float | None) -> str:
    """3725 -> 1:02:05"""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_percent(share: float | None) -> str:
    """0.8765 -> 87.7"""
    return DASH if share is None else f"{100 * share:.1f}"


def format_share(share: float) -> str:
    """0.0541 -> 5.41 %"""
    return "< 0.01 %" if 0 < share < 0.0001 else f"{100 * share:.3g} %"


def counted(number: int, thing: str) -> str:
    """1, "file" -> 1 file; 1200, "file" -> 1,200 files"""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def count_runs(number: int) -> str:
    return "one run" if number == 1 else counted(number, "run")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])

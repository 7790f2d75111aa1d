"""Documents in, rows out: packs the token ids of documents into "[CLS] A [SEP] B [SEP]" rows of a fixed length.

Rows never cross documents. Everything random is drawn from (seed, document, row), so a document gives the same rows
wherever and whenever it is packed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import NamedTuple

import numpy as np

from electrakit.config import RowStyle

SINGLE_SEGMENT = 0.1  # share of rows with one segment (official builder)
SHORT_ROW = 0.05  # share of rows that aim at a random length (official builder)
SHORTEST_ROW = 5
SHORT_DOCUMENT = 13  # tokens, about ten words: such a document is a row that is nearly all padding
NO_AIM = 100_000  # what a row of one segment aims at (official builder)

Range = tuple[int, int]
Plan = tuple[list[Range], list[Range]]  # the token ranges of segment A, and those of segment B


@dataclass(frozen=True)
class Rows:
    """Rows, and how many of each document there are."""

    ids: np.ndarray  # (R, T)
    counts: dict[str, np.ndarray]  # name -> one number for each document; the names are those of COUNTS


COUNTS = {
    "rows": "rows made of the document",
    "tokens": "text tokens in its rows: without [CLS], [SEP] and padding",
    "tokens_lost": "text tokens that are in no row",
    "padding": "places filled with [PAD]",
    "rows_mostly_padding": "rows that are padding for more than half",
    "short_documents": "1 if it has fewer than SHORT_DOCUMENT text tokens",
}


class Draw(NamedTuple):
    """What chance decides about one row."""

    is_single: bool
    joins_first: bool  # the line at the border goes to segment A
    target: int  # how long the row should be


def pack(
    ids: np.ndarray,
    line_lengths: np.ndarray,
    lines_per_document: np.ndarray,
    identities: np.ndarray,
    *,
    style: RowStyle,
    length: int,
    special_ids: dict[str, int],
    seed: int,
    dtype: str,
) -> Rows:
    """Pack documents, given as one flat array of ids and the lengths of their lines, into rows."""
    plan = _PLANS[style]
    line_ends = np.cumsum(line_lengths).tolist()
    tokens_per_document = _sums(line_lengths, lines_per_document)
    chances = _Chances(seed, identities, length, tokens_per_document)
    plans: list[Plan] = []
    num_rows = np.zeros(len(lines_per_document), np.int64)
    first_line, start = 0, 0
    sizes = zip(lines_per_document.tolist(), tokens_per_document.tolist(), strict=True)
    for document, (num_lines, num_tokens) in enumerate(sizes):
        if num_tokens:
            num_before = len(plans)
            plans.extend(plan(start, line_ends[first_line : first_line + num_lines], length, chances.of(document)))
            num_rows[document] = len(plans) - num_before
        first_line += num_lines
        start += num_tokens
    matrix, tokens_per_row, padding_per_row = _fill(ids, plans, length, special_ids, dtype)
    num_packed = _sums(tokens_per_row, num_rows)
    counts = {
        "rows": num_rows,
        "tokens": num_packed,
        "tokens_lost": tokens_per_document - num_packed,
        "padding": _sums(padding_per_row, num_rows),
        "rows_mostly_padding": _sums(padding_per_row > length / 2, num_rows),
        "short_documents": (tokens_per_document < SHORT_DOCUMENT).astype(np.int64),
    }
    return Rows(matrix, counts)


# --- where rows begin and end: a document's first token and the ends of its lines in, token ranges out ----------------


def plan_full(start: int, line_ends: list[int], length: int, draw: Iterator[Draw]) -> Iterator[Plan]:
    """The official builder's rows, but what does not fit into a row starts the next one: no token is lost."""
    end = line_ends[-1]
    while start < end:
        is_single, joins_first, target = next(draw)
        border = stop = min(end, start + target - 2)  # one segment: room for [CLS] and [SEP]
        if not is_single:
            aim = start + (target - 3) // 2
            line = max(bisect_right(line_ends, start), bisect_left(line_ends, aim) - 1)  # A's last line
            if line_ends[line] < min(aim, end) and joins_first:
                line += 1
            stop_of_two = min(end, start + target - 3)  # and for one more [SEP]
            if line_ends[line] < stop_of_two:
                border, stop = line_ends[line], stop_of_two
        yield [(start, border)], [(border, stop)]
        start = stop


def plan_official(start: int, line_ends: list[int], length: int, draw: Iterator[Draw]) -> Iterator[Plan]:
    """The builder of google-research/electra: the end of the line that fills a row is thrown away."""
    end = line_ends[-1]
    first_line = 0
    while start < end:
        chance = next(draw)
        filled = min(bisect_left(line_ends, start + chance.target, first_line), len(line_ends) - 1)
        first, second = _official_segments(start, line_ends[first_line : filled + 1], chance)
        first = _cut(first, length - 2)
        yield first, _cut(second, length - 3 - sum(stop - begin for begin, stop in first))
        start, first_line = line_ends[filled], filled + 1


def _official_segments(start: int, line_ends: list[int], chance: Draw) -> Plan:
    """Which lines of a row go to segment A, and which to B; in both they keep their order."""
    aim = NO_AIM if chance.is_single else (chance.target - 3) // 2
    border = bisect_left(line_ends, start + aim)  # the first line that does not fit into A
    first_end = line_ends[border - 1] if border else start
    if border < len(line_ends) and (first_end == start or (first_end - start < aim and chance.joins_first)):
        first_end = line_ends[border]  # nothing fits into A any more
        return [(start, first_end)], [(first_end, line_ends[-1])]
    first, second = [(start, first_end)], []
    num_first = first_end - start
    for begin, stop in pairwise([first_end, *line_ends[border:]]):
        if num_first + stop - begin < aim:  # a short line behind the border still goes to A
            first.append((begin, stop))
            num_first += stop - begin
        else:
            second.append((begin, stop))
    return first, second


def _cut(ranges: list[Range], room: int) -> list[Range]:
    kept = []
    for start, end in ranges:
        if room <= 0:
            break
        kept.append((start, min(end, start + room)))
        room -= end - start
    return kept


def plan_crude(start: int, line_ends: list[int], length: int, draw: Iterator[Draw]) -> Iterator[Plan]:
    """Two samples of half the length put together, wherever lines end."""
    end = line_ends[-1]
    num_first, num_second = length // 2 - 2, length - length // 2 - 1
    while start < end:
        middle = min(end, start + num_first)
        stop = min(end, middle + num_second)
        yield [(start, middle)], [(middle, stop)]
        start = stop


_PLANS: dict[str, Callable[[int, list[int], int, Iterator[Draw]], Iterator[Plan]]] = {
    "full": plan_full,
    "official": plan_official,
    "crude": plan_crude,
}


# --- chance ----------------------------------------------------------------------------------------------------------


def draws(seed: int, identity: int, length: int, first_row: int = 0) -> Iterator[Draw]:
    """What chance decides about a document's rows, one after the other."""
    for start in count(first_row, 64):
        yield from _draw(seed, np.full(64, identity, np.uint64), np.arange(start, start + 64), length)


class _Chances:
    """`draws` of many documents. Most are drawn at once: numpy's price is per call, and documents are often short."""

    def __init__(self, seed: int, identities: np.ndarray, length: int, tokens_per_document: np.ndarray) -> None:
        self.seed, self.identities, self.length = seed, identities, length
        num_drawn = tokens_per_document // (length - 3) * 17 // 16 + 2  # nearly always enough
        ends = np.cumsum(num_drawn)
        first = ends - num_drawn
        rows = np.arange(num_drawn.sum()) - np.repeat(first, num_drawn)
        self.drawn = _draw(seed, np.repeat(identities, num_drawn), rows, length)
        self.first, self.ends = first.tolist(), ends.tolist()

    def of(self, document: int) -> Iterator[Draw]:
        first, end = self.first[document], self.ends[document]
        return chain(self.drawn[first:end], draws(self.seed, int(self.identities[document]), self.length, end - first))


def _draw(seed: int, identities: np.ndarray, rows: np.ndarray, length: int) -> list[Draw]:
    chances = uniform(seed, identities, rows)
    is_short = chances[:, 2] < SHORT_ROW
    short = SHORTEST_ROW + (chances[:, 3] * (length - SHORTEST_ROW + 1)).astype(np.int64)
    targets = np.where(is_short, short, length)
    singles, joins = chances[:, 0] < SINGLE_SEGMENT, chances[:, 1] < 0.5
    return list(map(Draw, singles.tolist(), joins.tolist(), targets.tolist()))


def uniform(seed: int, identities: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Four numbers in [0, 1) for each (document, row), computed from these alone (SplitMix64): (N, 4)."""
    start: np.ndarray = identities ^ np.uint64(seed * 0xD1342543DE82EF95 & 0xFFFFFFFFFFFFFFFF)
    place = 4 * rows.astype(np.uint64)[:, None] + np.arange(1, 5, dtype=np.uint64)
    mixed: np.ndarray = start[:, None] + place * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)) / 2**53


# --- plans to ids ----------------------------------------------------------------------------------------------------


def _fill(
    ids: np.ndarray, plans: list[Plan], length: int, special_ids: dict[str, int], dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The planned rows as an array (R, T), and the number of text tokens and of padding in each."""
    matrix = np.full((len(plans), length), special_ids["pad"], dtype)
    if not plans:
        return matrix, np.zeros(0, np.int64), np.zeros(0, np.int64)
    num_first = np.fromiter((len(first) for first, _ in plans), np.int64, len(plans))
    num_ranges = np.fromiter((len(first) + len(second) for first, second in plans), np.int64, len(plans))
    flat = chain.from_iterable(chain.from_iterable(chain.from_iterable(plans)))
    starts, ends = np.fromiter(flat, np.int64, 2 * int(num_ranges.sum())).reshape(-1, 2).T
    sizes = ends - starts
    number_in_row = np.arange(len(sizes)) - np.repeat(np.cumsum(num_ranges) - num_ranges, num_ranges)
    is_second = number_in_row >= np.repeat(num_first, num_ranges)
    tokens_per_row = _sums(sizes, num_ranges)
    size_second = _sums(sizes * is_second, num_ranges)
    size_first = tokens_per_row - size_second

    # In its row, a range stands behind [CLS], the ranges before it, and for segment B one more [SEP].
    before = np.cumsum(sizes) - sizes  # text tokens in all ranges before
    before_row = np.cumsum(tokens_per_row) - tokens_per_row
    rows = np.arange(len(plans))
    places = np.repeat(rows * length + 1 - before_row, num_ranges) + before + is_second
    token = np.arange(int(sizes.sum()))
    matrix.reshape(-1)[np.repeat(places - before, sizes) + token] = ids[np.repeat(starts - before, sizes) + token]

    matrix[:, 0] = special_ids["cls"]
    matrix[rows, 1 + size_first] = special_ids["sep"]
    has_second = size_second > 0
    matrix[rows[has_second], 2 + tokens_per_row[has_second]] = special_ids["sep"]
    return matrix, tokens_per_row, length - 2 - tokens_per_row - has_second


def _sums(values: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """Sums of consecutive groups."""
    totals = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(group_sizes)
    return totals[ends] - totals[ends - group_sizes]

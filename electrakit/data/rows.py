"""Documents in, rows out: packs the token ids of documents into "[CLS] A [SEP] B [SEP]" rows of a fixed length.

Rows never cross documents. Everything random is drawn from (seed, document, row), so a document gives the same rows
wherever and whenever it is packed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from electrakit.config import RowStyle

SINGLE_SEGMENT = 0.1  # share of rows with one segment (official builder)
SHORT_ROW = 0.05  # share of rows that aim at a random length (official builder)
SHORTEST_ROW = 5

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
}


@dataclass(frozen=True)
class Draw:
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
    plans: list[Plan] = []
    num_rows = np.zeros(len(lines_per_document), np.int64)
    first_line, start = 0, 0
    for number, num_lines in enumerate(lines_per_document.tolist()):
        ends = line_ends[first_line : first_line + num_lines]
        num_before = len(plans)
        if ends and ends[-1] > start:
            plans.extend(plan(start, ends, length, draws(seed, int(identities[number]), length)))
            start = ends[-1]
        num_rows[number] = len(plans) - num_before
        first_line += num_lines
    matrix, tokens_per_row = _fill(ids, plans, length, special_ids, dtype)
    padding_per_row = (matrix == special_ids["pad"]).sum(1)
    num_tokens = _sums(tokens_per_row, num_rows)
    counts = {
        "rows": num_rows,
        "tokens": num_tokens,
        "tokens_lost": _sums(line_lengths, lines_per_document) - num_tokens,
        "padding": _sums(padding_per_row, num_rows),
        "rows_mostly_padding": _sums(padding_per_row > length / 2, num_rows),
    }
    return Rows(matrix, counts)


def plan_full(start: int, line_ends: list[int], length: int, draw: Iterator[Draw]) -> Iterator[Plan]:
    """The official builder's rows, but what does not fit into a row starts the next one: no token is lost."""
    end = line_ends[-1]
    while start < end:
        chance = next(draw)
        first_end = second_end = min(end, start + chance.target - 2)  # one segment: room for [CLS] and [SEP]
        if not chance.is_single:
            aim = start + (chance.target - 3) // 2
            line = max(bisect_right(line_ends, start), bisect_left(line_ends, aim) - 1)  # A's last line
            if line_ends[line] < min(aim, end) and chance.joins_first:
                line += 1
            if line_ends[line] < first_end:
                first_end, second_end = line_ends[line], min(end, start + chance.target - 3)
        yield [(start, first_end)], [(first_end, second_end)]
        start = second_end


def plan_official(start: int, line_ends: list[int], length: int, draw: Iterator[Draw]) -> Iterator[Plan]:
    """The builder of google-research/electra: the end of the line that fills a row is thrown away."""
    chance = next(draw)
    lines: list[Range] = []
    for line_end in line_ends:
        lines.append((start, line_end))
        start = line_end
        if start - lines[0][0] >= chance.target or line_end == line_ends[-1]:
            if start > lines[0][0]:
                yield _official_segments(lines, length, chance)
            chance = next(draw)
            lines = []


def _official_segments(lines: list[Range], length: int, chance: Draw) -> Plan:
    aim = 100_000 if chance.is_single else (chance.target - 3) // 2
    first: list[Range] = []
    second: list[Range] = []
    num_first = num_second = 0
    for start, end in lines:
        size = end - start
        if num_first == 0 or num_first + size < aim or (num_second == 0 and num_first < aim and chance.joins_first):
            first.append((start, end))
            num_first += size
        else:
            second.append((start, end))
            num_second += size
    first = _cut(first, length - 2)
    return first, _cut(second, max(0, length - min(num_first, length - 2) - 3))


def _cut(ranges: list[Range], room: int) -> list[Range]:
    kept = []
    for start, end in ranges:
        kept.append((start, min(end, start + room)))
        room -= kept[-1][1] - start
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


def draws(seed: int, identity: int, length: int) -> Iterator[Draw]:
    """What chance decides about a document's rows, one after the other."""
    first_row = 0
    num_rows = 8
    while True:
        chances = uniform(seed, identity, first_row, num_rows)
        targets = np.where(
            chances[:, 2] < SHORT_ROW, SHORTEST_ROW + (chances[:, 3] * (length - SHORTEST_ROW + 1)).astype(int), length
        )
        singles, joins = chances[:, 0] < SINGLE_SEGMENT, chances[:, 1] < 0.5
        yield from map(Draw, singles.tolist(), joins.tolist(), targets.tolist())
        first_row += num_rows
        num_rows = min(1024, num_rows * 4)


def uniform(seed: int, identity: int, first_row: int, num_rows: int) -> np.ndarray:
    """Four numbers in [0, 1) for each row, computed from their place alone (SplitMix64)."""
    with np.errstate(over="ignore"):
        start = np.uint64((identity ^ (seed * 0xD1342543DE82EF95)) & 0xFFFFFFFFFFFFFFFF)
        place = np.arange(4 * first_row + 1, 4 * (first_row + num_rows) + 1, dtype=np.uint64)
        mixed = start + place * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return ((mixed >> np.uint64(11)) / 2**53).reshape(num_rows, 4)


def _fill(
    ids: np.ndarray, plans: list[Plan], length: int, special_ids: dict[str, int], dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """The planned rows as an array (R, T), and the number of text tokens in each."""
    matrix = np.full((len(plans), length), special_ids["pad"], dtype)
    if not plans:
        return matrix, np.zeros(0, np.int64)
    sources = np.array([one for first, second in plans for one in (*first, *second)], np.int64)  # (ranges, 2)
    num_first = np.array([len(first) for first, _ in plans])
    num_second = np.array([len(second) for _, second in plans])
    counts = sources[:, 1] - sources[:, 0]
    per_row = num_first + num_second
    is_second = np.arange(len(sources)) - np.repeat(np.cumsum(per_row) - per_row, per_row) >= np.repeat(
        num_first, per_row
    )
    row = np.repeat(np.arange(len(plans)), per_row)
    size_first = np.bincount(row, np.where(is_second, 0, counts), len(plans)).astype(np.int64)
    size_second = np.bincount(row, np.where(is_second, counts, 0), len(plans)).astype(np.int64)

    tokens_per_row = size_first + size_second
    before = np.cumsum(counts) - counts  # text tokens in all ranges before
    before_row = np.cumsum(tokens_per_row) - tokens_per_row
    # in its row, a range stands behind [CLS], the ranges before it, and for segment B one more [SEP]
    place = row * length + 1 + is_second + before - before_row[row]
    each = np.arange(int(counts.sum()))
    matrix.reshape(-1)[np.repeat(place - before, counts) + each] = ids[np.repeat(sources[:, 0] - before, counts) + each]

    rows = np.arange(len(plans))
    matrix[:, 0] = special_ids["cls"]
    matrix[rows, 1 + size_first] = special_ids["sep"]
    has_second = size_second > 0
    matrix[rows[has_second], (2 + tokens_per_row)[has_second]] = special_ids["sep"]
    return matrix, tokens_per_row


def _sums(values: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """Sums of consecutive groups."""
    totals = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(group_sizes)
    return totals[ends] - totals[ends - group_sizes]

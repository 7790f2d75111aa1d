"""Packs the token ids of documents into "[CLS] A [SEP] B [SEP]" rows of a fixed length.

Rows never cross documents. Everything random is drawn from (seed, document, row), so a document gives the same rows
wherever and whenever it is packed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, count, pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from electrakit.config.corpus import RowStyle

SINGLE_SEGMENT = 0.1  # share of rows with one segment (official builder)
SHORT_ROW = 0.05  # share of rows that aim at a random length (official builder)
SHORTEST_ROW = 5
SHORT_DOCUMENT_TOKENS = 13  # about ten words: such a document is a row that is nearly all padding
NO_AIM = 100_000  # what a row of one segment aims at (official builder)

Range = tuple[int, int]
Segments = tuple[list[Range], list[Range]]  # the token ranges of segments A and B of one row


@dataclass(frozen=True, kw_only=True)
class DocumentCounts:
    """The counts of some documents and their rows."""

    documents: int = 0
    rows: int = 0
    tokens: int = 0  # of text, in rows: without [CLS], [SEP] and padding
    tokens_lost: int = 0  # of text, in no row
    padding: int = 0  # positions filled with [PAD]
    rows_mostly_padding: int = 0  # more than half of the row
    short_documents: int | None = None  # fewer than SHORT_DOCUMENT_TOKENS; older shards do not have it

    @classmethod
    def of(cls, numbers: Mapping[str, Any], **more: Any) -> Self:
        """Those of `numbers` that are counts, and `more` fields."""
        return cls(**{name: numbers[name] for name in COUNTS if name in numbers}, **more)


COUNTS = tuple(field.name for field in fields(DocumentCounts))


@dataclass(frozen=True)
class Rows:
    """The rows of some documents, and counts for each document."""

    ids: np.ndarray  # (R, T)
    counts: dict[str, np.ndarray]  # name of COUNTS -> one number for each document


class RowChoice(NamedTuple):
    """The random choices about one row."""

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
    cut_into_rows = _ROW_STYLES[style]
    line_ends = np.cumsum(line_lengths).tolist()
    tokens_per_document = _group_sums(line_lengths, lines_per_document)
    all_draws = _draws_of_all(seed, identities, length, tokens_per_document)
    rows: list[Segments] = []
    rows_before = [0]  # each document, and the end
    first_line, start = 0, 0
    sizes = zip(lines_per_document.tolist(), tokens_per_document.tolist(), strict=True)
    for (num_lines, num_tokens), draw in zip(sizes, all_draws, strict=True):
        if num_tokens:
            rows += cut_into_rows(start, line_ends[first_line : first_line + num_lines], length, draw)
        rows_before.append(len(rows))
        first_line += num_lines
        start += num_tokens
    num_rows = np.diff(rows_before)
    matrix, tokens_per_row, padding_per_row = _fill_rows(ids, rows, length, special_ids, dtype)
    num_packed = _group_sums(tokens_per_row, num_rows)
    counts = {
        "documents": np.ones_like(num_rows),
        "rows": num_rows,
        "tokens": num_packed,
        "tokens_lost": tokens_per_document - num_packed,
        "padding": _group_sums(padding_per_row, num_rows),
        "rows_mostly_padding": _group_sums(padding_per_row > length / 2, num_rows),
        "short_documents": (tokens_per_document < SHORT_DOCUMENT_TOKENS).astype(np.int64),
    }
    return Rows(matrix, counts)


# --- row styles: a document's first token and the ends of its lines in, the token ranges of its rows out ---------------


def full_rows(start: int, line_ends: list[int], length: int, draw: Iterator[RowChoice]) -> Iterator[Segments]:
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


def official_rows(start: int, line_ends: list[int], length: int, draw: Iterator[RowChoice]) -> Iterator[Segments]:
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


def _official_segments(start: int, line_ends: list[int], chance: RowChoice) -> Segments:
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


def crude_rows(start: int, line_ends: list[int], length: int, draw: Iterator[RowChoice]) -> Iterator[Segments]:
    """Two samples of half the length put together, wherever lines end."""
    end = line_ends[-1]
    num_first, num_second = length // 2 - 2, length - length // 2 - 1
    while start < end:
        middle = min(end, start + num_first)
        stop = min(end, middle + num_second)
        yield [(start, middle)], [(middle, stop)]
        start = stop


_ROW_STYLES: dict[str, Callable[[int, list[int], int, Iterator[RowChoice]], Iterator[Segments]]] = {
    "full": full_rows,
    "official": official_rows,
    "crude": crude_rows,
}


# --- random choices ----------------------------------------------------------------------------------------------------------


def draws(seed: int, identity: int, length: int, first_row: int = 0) -> Iterator[RowChoice]:
    """The random choices about a document's rows, one after the other."""
    for start in count(first_row, 64):
        yield from _draw(seed, np.full(64, identity, np.uint64), np.arange(start, start + 64), length)


def _draws_of_all(
    seed: int, identities: np.ndarray, length: int, tokens_per_document: np.ndarray
) -> Iterator[Iterator[RowChoice]]:
    """`draws` of each document. Most are drawn at once: numpy's cost is per call, and documents are often short."""
    num_drawn = tokens_per_document // (length - 3) * 17 // 16 + 2  # nearly always enough
    ends = np.cumsum(num_drawn)
    rows = np.arange(num_drawn.sum()) - np.repeat(ends - num_drawn, num_drawn)
    drawn = _draw(seed, np.repeat(identities, num_drawn), rows, length)
    for identity, num, end in zip(identities.tolist(), num_drawn.tolist(), ends.tolist(), strict=True):
        yield chain(drawn[end - num : end], draws(seed, identity, length, first_row=num))


def _draw(seed: int, identities: np.ndarray, rows: np.ndarray, length: int) -> list[RowChoice]:
    chances = uniform(seed, identities, rows)
    is_short = chances[:, 2] < SHORT_ROW
    short = SHORTEST_ROW + (chances[:, 3] * (length - SHORTEST_ROW + 1)).astype(np.int64)
    targets = np.where(is_short, short, length)
    singles, joins = chances[:, 0] < SINGLE_SEGMENT, chances[:, 1] < 0.5
    return list(map(RowChoice, singles.tolist(), joins.tolist(), targets.tolist()))


def uniform(seed: int, identities: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Four numbers in [0, 1) for each (document, row), computed from these alone (SplitMix64): (N, 4)."""
    start: np.ndarray = identities ^ np.uint64(seed * 0xD1342543DE82EF95 & 0xFFFFFFFFFFFFFFFF)
    place = 4 * rows.astype(np.uint64)[:, None] + np.arange(1, 5, dtype=np.uint64)
    mixed: np.ndarray = start[:, None] + place * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)) / 2**53


# --- ranges to ids ----------------------------------------------------------------------------------------------------


def _fill_rows(
    ids: np.ndarray, rows_of_ranges: list[Segments], length: int, special_ids: dict[str, int], dtype: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows as an array (R, T), and the number of text tokens and of padding in each."""
    matrix = np.full((len(rows_of_ranges), length), special_ids["pad"], dtype)
    if not rows_of_ranges:
        return matrix, np.zeros(0, np.int64), np.zeros(0, np.int64)
    num_first, num_second = np.array([(len(first), len(second)) for first, second in rows_of_ranges]).T
    num_ranges = num_first + num_second
    flat = chain.from_iterable(chain.from_iterable(chain.from_iterable(rows_of_ranges)))
    starts, ends = np.fromiter(flat, np.int64, 2 * int(num_ranges.sum())).reshape(-1, 2).T
    sizes = ends - starts
    number_in_row = np.arange(len(sizes)) - np.repeat(np.cumsum(num_ranges) - num_ranges, num_ranges)
    is_second = number_in_row >= np.repeat(num_first, num_ranges)
    tokens_per_row = _group_sums(sizes, num_ranges)
    size_second = _group_sums(sizes * is_second, num_ranges)
    size_first = tokens_per_row - size_second

    # In its row, a range stands behind [CLS], the ranges before it, and for segment B one more [SEP].
    before = np.cumsum(sizes) - sizes  # text tokens in all ranges before
    before_row = np.cumsum(tokens_per_row) - tokens_per_row
    rows = np.arange(len(rows_of_ranges))
    places = np.repeat(rows * length + 1 - before_row, num_ranges) + before + is_second
    token = np.arange(int(sizes.sum()))
    matrix.reshape(-1)[np.repeat(places - before, sizes) + token] = ids[np.repeat(starts - before, sizes) + token]

    matrix[:, 0] = special_ids["cls"]
    matrix[rows, 1 + size_first] = special_ids["sep"]
    has_second = size_second > 0
    matrix[rows[has_second], 2 + tokens_per_row[has_second]] = special_ids["sep"]
    return matrix, tokens_per_row, length - 2 - tokens_per_row - has_second


def _group_sums(values: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
    """Sums of consecutive groups."""
    totals = np.concatenate([[0], np.cumsum(values)])
    ends = np.cumsum(group_sizes)
    return totals[ends] - totals[ends - group_sizes]

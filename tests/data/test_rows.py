"""Rows: the official builder exactly, the full one without a lost token, and no row that knows of another document."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit.data.rows import COUNTS, Rows, draws, pack, uniform

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
FIRST_ID = 5
STYLES = ("full", "official", "crude")

line_lengths = st.one_of(st.just(0), st.just(1), st.integers(0, 20), st.integers(0, 150), st.integers(500, 1500))
documents = st.lists(line_lengths, max_size=25)  # the lengths of its lines
corpora = st.lists(documents, max_size=5)
lengths = st.one_of(st.integers(8, 16), st.integers(8, 512), st.sampled_from([8, 128, 512]))


def packed(corpus: list[list[int]], length: int, style: str = "full", seed: int = 0, first_identity: int = 1) -> Rows:
    """Documents, given as the lengths of their lines, as rows. The n-th token of the corpus is FIRST_ID + n."""
    sizes = np.array([size for document in corpus for size in document], np.int64)
    return pack(
        (FIRST_ID + np.arange(sizes.sum())).astype(np.uint32),
        sizes,
        np.array([len(document) for document in corpus], np.int64),
        np.arange(first_identity, first_identity + len(corpus), dtype=np.uint64),
        style=style,
        length=length,
        special_ids=SPECIAL,
        seed=seed,
        dtype="uint32",
    )


def lines_of(document: list[int], first: int = FIRST_ID) -> list[list[int]]:
    """The ids of each line."""
    ends = np.cumsum([first, *document]).tolist()
    return [list(range(start, end)) for start, end in pairwise(ends)]


def segments(row: list[int]) -> tuple[list[int], list[int]]:
    """Segments A and B of a row; checks its form: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], then padding only."""
    end = len(row)
    while row[end - 1] == SPECIAL["pad"]:
        end -= 1
    real = row[:end]
    assert real[0] == SPECIAL["cls"] and real[-1] == SPECIAL["sep"]
    first, *second = _split(real[1:-1], SPECIAL["sep"])
    assert len(second) <= 1 and first and all(second)
    assert all(one >= FIRST_ID for segment in (first, *second) for one in segment)
    return first, second[0] if second else []


def _split(ids: list[int], at: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for one in ids:
        if one == at:
            parts.append([])
        else:
            parts[-1].append(one)
    return parts


def row(first: list[int], second: list[int], length: int) -> list[int]:
    ids = [SPECIAL["cls"], *first, SPECIAL["sep"]]
    if second:
        ids += [*second, SPECIAL["sep"]]
    return ids + [SPECIAL["pad"]] * (length - len(ids))


# The official builder, slowly, token by token


def official_rows(lines: list[list[int]], length: int, draw) -> list[list[int]]:
    rows = []
    chance = next(draw)
    buffered: list[list[int]] = []
    for line in lines:
        buffered.append(line)
        if sum(map(len, buffered)) >= chance.target:
            rows.append(official_row(buffered, length, chance))
            buffered, chance = [], next(draw)
    if sum(map(len, buffered)):
        rows.append(official_row(buffered, length, chance))
    return rows


def official_row(buffered: list[list[int]], length: int, chance) -> list[int]:
    aim = 100_000 if chance.is_single else (chance.target - 3) // 2
    first: list[int] = []
    second: list[int] = []
    for line in buffered:
        if not first or len(first) + len(line) < aim or (not second and len(first) < aim and chance.joins_first):
            first += line
        else:
            second += line
    first = first[: length - 2]
    second = second[: max(0, length - len(first) - 3)]
    return row(first, second, length)


def full_rows(lines: list[list[int]], length: int, draw) -> list[list[int]]:
    """The same builder, but what a row has no room for stays in the buffer."""
    rows = []
    lines = [line for line in lines if line]
    while lines:
        chance = next(draw)
        aim = 100_000 if chance.is_single else (chance.target - 3) // 2
        first, rest = list(lines[0]), lines[1:]
        while rest and len(first) + len(rest[0]) < aim:
            first += rest.pop(0)
        if rest and len(first) < aim and chance.joins_first:
            first += rest.pop(0)
        second = [one for line in rest for one in line]
        if chance.is_single or not second or len(first) >= chance.target - 3:  # no room for a second one
            first, second = (first + second)[: chance.target - 2], []
        else:
            second = second[: chance.target - 3 - len(first)]
        rows.append(row(first, second, length))
        num_used = len(first) + len(second)
        while num_used:
            now = min(num_used, len(lines[0]))
            num_used -= now
            lines[0] = lines[0][now:]
            if not lines[0]:
                lines.pop(0)
    return rows


@pytest.mark.parametrize(("style", "reference"), [("official", official_rows), ("full", full_rows)])
@given(corpus=corpora, length=lengths, seed=st.integers(-3, 2**64), first_identity=st.integers(0, 2**63))
@settings(max_examples=150, deadline=None)
def test_rows_equal_a_slow_reference_with_the_same_draws(style, reference, corpus, length, seed, first_identity):
    wanted, first = [], FIRST_ID
    for number, document in enumerate(corpus):
        draw = draws(seed, first_identity + number, length)
        wanted += reference(lines_of(document, first), length, draw)
        first += sum(document)
    assert packed(corpus, length, style, seed, first_identity).ids.tolist() == wanted


@pytest.mark.parametrize("style", ["official", "full"])
@pytest.mark.parametrize("length", [8, 64, 128, 512])
def test_rows_equal_the_slow_reference_on_long_documents(style, length):
    reference = {"official": official_rows, "full": full_rows}[style]
    sizes = np.random.default_rng(length).poisson(17, 30 + 2 * length).tolist()
    wanted = reference(lines_of(sizes), length, draws(7, 1, length))
    assert packed([sizes], length, style, seed=7).ids.tolist() == wanted


def test_rows_equal_the_slow_reference_when_many_are_short_by_chance():
    corpus = [[25] * 49 + [24]] * 1000  # about 10 rows each; of so many documents, some draw several short ones
    rows = packed(corpus, 128)
    assert rows.counts["rows"].max() > 11  # more than are drawn at once
    for number in np.flatnonzero(rows.counts["rows"] > 11):
        end = rows.counts["rows"][: number + 1].sum()
        made = rows.ids[end - rows.counts["rows"][number] : end].tolist()
        assert made == full_rows(lines_of(corpus[0], FIRST_ID + 1249 * number), 128, draws(0, 1 + int(number), 128))


def test_official_rows_follow_the_official_rule_beyond_its_hundred_thousand_tokens():
    sizes = [50, 99_990, 3]  # an aim of 100,000 is no infinity: such a line may start segment B of a "single" row
    for seed in range(60):
        wanted = official_rows(lines_of(sizes), 128, draws(seed, 1, 128))
        assert packed([sizes], 128, "official", seed).ids.tolist() == wanted


# Rows that lose nothing


@pytest.mark.parametrize("length", [8, 9, 128, 8192])
@given(corpus=corpora, seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_full_rows_hold_every_token_once_in_order_and_never_cross_documents(length, corpus, seed):
    rows = packed(corpus, length, "full", seed)
    assert rows.ids.shape == (rows.counts["rows"].sum(), length)
    made = iter(rows.ids.tolist())
    first = FIRST_ID
    for document, num_rows in zip(corpus, rows.counts["rows"].tolist(), strict=True):
        tokens = [one for part in islice(made, num_rows) for segment in segments(part) for one in segment]
        assert tokens == list(range(first, first + sum(document)))
        first += sum(document)
    assert not rows.counts["tokens_lost"].any()


@given(document=documents, length=lengths, seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_full_rows_are_full_but_for_the_last_of_a_document_and_those_short_by_chance(document, length, seed):
    rows = packed([document], length, "full", seed).ids.tolist()
    for made, chance in zip(rows[:-1], draws(seed, 1, length), strict=False):
        assert sum(one != SPECIAL["pad"] for one in made) == chance.target


@given(document=documents, length=lengths, seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_full_segments_end_at_the_end_of_a_line_and_single_rows_have_a_reason(document, length, seed):
    line_ends = set((FIRST_ID + np.cumsum(document)).tolist())
    for made, chance in zip(
        packed([document], length, "full", seed).ids.tolist(), draws(seed, 1, length), strict=False
    ):
        first, second = segments(made)
        if second:
            assert second[0] in line_ends and not chance.is_single
        elif not chance.is_single:
            inside = [end for end in line_ends if first[0] < end < min(first[-1] + 1, first[0] + chance.target - 3)]
            aim = (chance.target - 3) // 2
            is_rest = len(first) < aim and first[-1] + 1 == FIRST_ID + sum(document)
            # no line ends inside; or, as in the official builder, all that is left of the document fits into A, or
            # chance joined to A a line that fills the row
            assert not inside or is_rest or (chance.joins_first and max(inside) < first[0] + aim)


@pytest.mark.parametrize("style", ["full", "official"])
def test_a_tenth_of_the_rows_is_single_by_chance_and_a_twentieth_short(style):
    length = 128
    sizes = np.random.default_rng(0).integers(5, 40, 60_000).tolist()
    rows = packed([sizes], length, style).ids
    num_real = (rows != SPECIAL["pad"]).sum(1)
    num_separators = (rows == SPECIAL["sep"]).sum(1)
    assert abs((num_separators == 1).mean() - 0.11) < 0.01  # 0.1, and very short rows have room for one line
    assert abs((num_real < length - 45).mean() - 0.05 * (length - 45 - 5) / (length - 4)) < 0.01
    if style == "full":
        assert abs((num_real < length).mean() - 0.05 * (length - 5) / (length - 4)) < 0.01


def test_chance_draws_what_the_official_builder_draws():
    some = list(islice(draws(0, 1, 128), 40_000))
    short = [one.target for one in some if one.target < 128]
    assert abs(np.mean([one.is_single for one in some]) - 0.1) < 0.01
    assert abs(np.mean([one.joins_first for one in some]) - 0.5) < 0.01
    assert abs(len(short) / len(some) - 0.05) < 0.005
    assert (min(short), max(short)) == (5, 127) and abs(np.mean(short) - 66) < 3
    assert {one.target for one in islice(draws(0, 1, 8), 1000)} == {5, 6, 7, 8}


def test_chance_differs_between_seeds_documents_and_rows():
    numbers = [
        uniform(seed, np.uint64([one] * 50), np.arange(50)) for seed in range(20) for one in (0, 1, 2, 2**64 - 1)
    ]
    assert len(np.unique(np.concatenate(numbers))) == 20 * 4 * 50 * 4
    assert all(one.min() >= 0 and one.max() < 1 for one in numbers)


# Crude rows


@given(document=documents, length=lengths)
@settings(max_examples=100, deadline=None)
def test_crude_rows_are_two_samples_of_half_the_length(document, length):
    rows = packed([document], length, "crude")
    made = rows.ids.tolist()
    for one in made[:-1]:
        assert one[length // 2 - 1] == SPECIAL["sep"] and one[-1] == SPECIAL["sep"]
    assert [one for part in made for segment in segments(part) for one in segment] == [
        token for line in lines_of(document) for token in line
    ]


# All kinds


@pytest.mark.parametrize("style", STYLES)
@given(corpus=corpora, length=lengths, seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_a_document_gives_the_same_rows_alone_and_in_any_company(style, corpus, length, seed):
    together = packed(corpus, length, style, seed)
    ends = np.cumsum(together.counts["rows"])
    first = 0
    for number, document in enumerate(corpus):
        alone = packed([document], length, style, seed, first_identity=1 + number)
        in_company = together.ids[ends[number] - together.counts["rows"][number] : ends[number]].astype(np.int64)
        in_company[in_company >= FIRST_ID] -= first
        assert np.array_equal(alone.ids, in_company)
        assert all(alone.counts[name][0] == together.counts[name][number] for name in COUNTS)
        first += sum(document)


@pytest.mark.parametrize("style", STYLES)
@given(corpus=corpora, length=lengths)
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_the_rows(style, corpus, length):
    rows = packed(corpus, length, style)
    assert set(rows.counts) == set(COUNTS)
    first = 0
    for number, document in enumerate(corpus):
        made = rows.ids[first : first + rows.counts["rows"][number]]
        first += len(made)
        num_padding = (made == SPECIAL["pad"]).sum(1)
        num_tokens = int((made >= FIRST_ID).sum())
        assert rows.counts["tokens"][number] == num_tokens
        assert rows.counts["tokens_lost"][number] == sum(document) - num_tokens
        assert rows.counts["padding"][number] == num_padding.sum()
        assert rows.counts["rows_mostly_padding"][number] == (num_padding > length / 2).sum()
        assert (rows.counts["rows"][number] > 0) == (sum(document) > 0)
    assert first == len(rows.ids)


def test_official_rows_lose_and_pad_what_the_reference_says():
    sizes = np.random.default_rng(0).poisson(45, 20_000).tolist()
    rows = packed([sizes], 128, "official")
    assert abs(rows.counts["tokens_lost"][0] / sum(sizes) - 0.2) < 0.08  # about 26 % at other line lengths
    assert not packed([sizes], 128, "full").counts["tokens_lost"].any()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_rows_have_the_wanted_type(dtype):
    ids = np.array([5, 6, 65_534 if dtype == "uint16" else 70_000], np.uint32)
    one = np.array([1], np.int64)
    rows = pack(
        ids, 3 * one, one, one.astype(np.uint64), style="full", length=8, special_ids=SPECIAL, seed=0, dtype=dtype
    )
    assert rows.ids.dtype == dtype and ids[-1] in rows.ids

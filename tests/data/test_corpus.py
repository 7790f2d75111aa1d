"""A corpus: read in order by any number of workers, each document counted once, limits exact."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit.common import workers_ray
from electrakit.common.errors import UserError
from electrakit.common.progress import console
from electrakit.config.corpus import CorpusConfig
from electrakit.data.corpus import BatchResult, Selection, map_corpus, print_notes, require_documents
from electrakit.data.read.formats import Document
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import find_inputs

batches_of_numbers = st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12)


def batch_of(numbers: list[int]) -> BatchResult[None]:
    some = np.array(numbers, np.uint64)
    return BatchResult(None, some, some, Notes(), (0, 0), 0, [("a.txt", line) for line in range(len(numbers))])


def first_lines(documents: list[Document], identities: np.ndarray) -> list[str]:
    return [document.lines[0] for document in documents]


@given(batches=batches_of_numbers, limit=st.none() | st.integers(1, 60), start=st.integers(0, 12))
@settings(max_examples=200, deadline=None)
def test_dedupe_and_limit_choose_the_first_of_each_content_and_no_more_than_the_limit(batches, limit, start):
    """Also when it is resumed with the numbers that were seen before."""
    config = CorpusConfig(inputs=("x",), dedupe=True, limit=limit)
    chosen, seen = [], set()
    selection = Selection(config)
    for number, batch in enumerate(batches):
        if number == start:
            before = np.array([one for earlier in batches[:number] for one in earlier], np.uint64)
            selection = Selection(config, len(chosen), before)
        wanted = []
        for one in batch:
            is_new = one not in seen and (limit is None or len(chosen) < limit)
            seen.add(one)
            wanted.append(is_new)
            chosen += [one] * is_new
        assert selection.choose(batch_of(batch)).tolist() == wanted
        assert selection.num_documents == len(chosen)
        assert selection.is_full == (limit is not None and len(chosen) >= limit)


def test_copies_are_counted_and_told():
    selection = Selection(CorpusConfig(inputs=("x",), dedupe=True))
    batch = batch_of([1, 2, 1, 1])
    assert selection.choose(batch).tolist() == [True, True, False, False]
    assert batch.notes.counts == {"copy of an earlier document; left out": 2}
    assert batch.notes.places == {"copy of an earlier document; left out": ["a.txt:2", "a.txt:3"]}


def test_without_options_every_document_counts():
    assert Selection(CorpusConfig(inputs=("x",))).choose(batch_of([1, 1, 1])).all()


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [1, 3])
def test_batches_come_in_the_order_of_the_corpus_from_any_start(tmp_path, num_workers):
    lines = [f"document {number} {'x' * 400}" for number in range(10_000)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines[:9000]))
    (tmp_path / "b.txt").write_text("\n\n".join(lines[9000:]))
    config = CorpusConfig(inputs=(str(tmp_path),), workers=num_workers)
    inputs = find_inputs(config, Notes())
    batches = list(map_corpus(config, inputs, first_lines, "reading"))
    assert [line for batch in batches for line in batch.value] == lines
    assert len(batches) > 2
    assert len(np.unique(np.concatenate([batch.identities for batch in batches]))) == len(lines)
    assert batches[-1].num_bytes_read == sum(one.num_bytes for one in inputs)
    later = list(map_corpus(config, inputs, first_lines, "reading", batches[1].next_position))
    assert [batch.value for batch in later] == [batch.value for batch in batches[2:]]


def test_the_sections_of_a_long_document_share_its_identity_but_are_no_copies(tmp_path):
    (tmp_path / "long.txt").write_text("".join(f"line number {number} of one document\n" for number in range(600_000)))
    config = CorpusConfig(inputs=(str(tmp_path),), workers=1, dedupe=True)
    batches = list(map_corpus(config, find_inputs(config, Notes()), first_lines, "reading"))
    num_sections = sum(len(batch.value) for batch in batches)
    assert num_sections > 1 and len({one for batch in batches for one in batch.identities.tolist()}) == 1
    selection = Selection(config)
    assert sum(int(selection.choose(batch).sum()) for batch in batches) == num_sections


def test_no_usable_text_is_an_error_that_says_why():
    notes = Notes()
    notes.add("empty file", "a.txt")
    config = CorpusConfig(inputs=("corpus",))
    with pytest.raises(UserError, match=r"no usable text in corpus: empty file \(a\.txt\)"):
        require_documents(0, notes, config)
    require_documents(1, notes, config)


def test_no_usable_text_does_not_claim_that_something_is_kept(tmp_path, read_all):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"words")[:12])
    (tmp_path / "b.zip").write_bytes(b"PK\x03\x04" + bytes(40))
    _, notes = read_all(tmp_path)
    assert any(" kept" in what for what in notes.counts)
    with pytest.raises(UserError) as error:
        require_documents(0, notes, CorpusConfig(inputs=("corpus",)))
    assert "compressed file is cut off (" in str(error.value) and "damaged archive (" in str(error.value)
    assert "kept" not in str(error.value)


@pytest.mark.parametrize(("places", "shown"), [("a", "a"), ("ab", "a, b"), ("abc", "a, b, ...")])
def test_dots_stand_for_places_that_are_not_shown_and_for_nothing_else(places, shown):
    notes = Notes()
    for place in places:
        notes.add("broken bytes", place, count=10)
    with console.capture() as capture:
        print_notes(notes)
    assert capture.get() == f"{10 * len(places)} × broken bytes  {shown}\n"


def test_notes_with_brackets_are_printed_as_they_are():
    notes = Notes()
    notes.add("line is not JSON [/x]", "folder[/y]/file[bold].jsonl:3")
    with console.capture() as capture:
        print_notes(notes)
    assert capture.get() == "1 × line is not JSON [/x]  folder[/y]/file[bold].jsonl:3\n"


def num_started(monkeypatch, tmp_path, **settings) -> int:
    started = []

    class Counted(workers_ray.WorkerPool):
        def __init__(self, num_workers, tasks_ahead):
            started.append(num_workers)
            super().__init__(min(2, num_workers), tasks_ahead)

    monkeypatch.setattr(workers_ray, "WorkerPool", Counted)
    monkeypatch.setattr(CorpusConfig, "num_workers", property(lambda config: config.workers or 64))
    config = CorpusConfig(inputs=(str(tmp_path),), **settings)
    list(map_corpus(config, find_inputs(config, Notes()), first_lines, "reading"))
    return started[0]


@pytest.mark.long
def test_a_small_corpus_starts_few_workers_unless_it_is_told_how_many(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("small")
    assert num_started(monkeypatch, tmp_path) == 1
    assert num_started(monkeypatch, tmp_path, workers=7) == 7
    (tmp_path / "b.txt").write_text("three megabytes\n" * 200_000)
    assert num_started(monkeypatch, tmp_path) == 4


def refuse(documents: list[Document], identities: np.ndarray) -> None:
    raise KeyError("the reason")


def test_a_failure_names_the_file_and_the_line(tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    config = CorpusConfig(inputs=(str(tmp_path),), workers=1)
    with pytest.raises(RuntimeError, match=r"(?s)failed while working on .*a\.txt:1:.*the reason"):
        list(map_corpus(config, find_inputs(config, Notes()), refuse, "reading"))

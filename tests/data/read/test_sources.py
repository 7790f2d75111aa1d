"""Files to batches: what kinds are recognised, where they are cut, and that cutting never changes a document."""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import textwrap
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import electrakit
from electrakit.common.errors import UserError
from electrakit.common.workers import WorkerPool
from electrakit.config.corpus import CorpusConfig
from electrakit.data.corpus import Selection, map_corpus, require_documents
from electrakit.data.read import sources
from electrakit.data.read.formats import Document, identity, read_batch
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import cut_inputs, find_inputs
from tests.helpers.processes import HANG, children_of

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def texts(documents):
    return ["\n".join(document.lines) for document in documents]


def words(documents):
    return [word for document in documents for line in document.lines for word in line.split()]


# --- plain text, JSON lines, parquet ---------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_text_is_split_by_blank_line_file_or_line(tmp_path, read_all, suffix, newline, mark):
    text = "\n \t\none\ntwo \n\n  \n\t three\n\n\n\nfour\n".replace("\n", newline)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](mark + text.encode()))
    for documents, expected in {
        "blank": ["one\ntwo", "three", "four"],
        "file": ["one\ntwo\nthree\nfour"],
        "line": ["one", "two", "three", "four"],
    }.items():
        found, notes = read_all(path, documents=documents)
        assert texts(found) == expected
        assert not notes.counts


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["a.jsonl", "wiki_00"])
def test_json_lines_are_read_by_field(tmp_path, read_all, suffix, name):
    lines = [json.dumps({"text": "other", "body": text}) for text in ("one\n\ntwo", "thrée")]
    (tmp_path / (name + suffix)).write_bytes(COMPRESS[suffix]("\n".join(lines).encode()))
    assert texts(read_all(tmp_path, field="body")[0]) == ["one\ntwo", "thrée"]
    assert texts(read_all(tmp_path)[0]) == ["other", "other"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_parquet_is_read_by_field(tmp_path, read_all, suffix):
    file = io.BytesIO()
    table = pyarrow.table({"body": ["one\n\ntwo", None, "thrée"] * 3000, "raw": [b"four \xff", b"five", b""] * 3000})
    pyarrow.parquet.write_table(table, file, row_group_size=1000)
    (tmp_path / f"a.parquet{suffix}").write_bytes(COMPRESS[suffix](file.getvalue()))
    documents, notes = read_all(tmp_path, field="body")
    assert texts(documents) == ["one\ntwo", "thrée"] * 3000
    assert notes.counts == {"field 'body' is not text; left out": 3000}
    assert notes.places["field 'body' is not text; left out"][1].endswith(f"a.parquet{suffix}:5")
    documents, notes = read_all(tmp_path, field="raw")
    assert texts(documents) == ["four", "five"] * 3000
    assert notes.counts == {"broken bytes; left out": 3000, "document without text; left out": 3000}


def test_parquet_without_the_column_or_damaged_is_noted(tmp_path, read_all):
    file = io.BytesIO()
    texts_written = [os.urandom(100).hex() for _ in range(2000)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts_written}), file, row_group_size=500)
    whole = file.getvalue()
    (tmp_path / "a.parquet").write_bytes(whole)
    assert "no column 'body'; left out" in read_all(tmp_path, field="body")[1].counts
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    documents, notes = read_all(tmp_path)
    assert not documents
    assert "damaged parquet file" in next(iter(notes.counts))
    for place in range(100, len(whole), len(whole) // 20):
        (tmp_path / "a.parquet").write_bytes(whole[:place] + bytes(64) + whole[place + 64 :])
        read_all(tmp_path)  # never raises; parquet has no checksums by default, so not all of it can be seen


def test_of_a_parquet_file_only_the_damaged_row_groups_are_lost(tmp_path, read_all):
    written = [os.urandom(100).hex() for _ in range(2000)]
    table = pyarrow.table({"text": written})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=500, use_dictionary=False)
    groups = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet").metadata
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    for number in (0, 2):
        place = groups.row_group(number).column(0).data_page_offset
        data[place : place + 40] = bytes([0xFF]) * 40  # the head of its page
    (tmp_path / "a.parquet").write_bytes(data)
    documents, notes = read_all(tmp_path)
    assert texts(documents) == written[500:1000] + written[1500:]
    what = "damaged part of a parquet file; the rest of its row group is left out"
    assert notes.counts == {what: 2}
    for place, number in zip(notes.places[what], (1, 3), strict=True):
        assert place.startswith(f"{tmp_path / 'a.parquet'}: row group {number} of 4: ")


@pytest.mark.parametrize("name", ["a.parquet", "a.txt.xz", "a.zip", "a.TAR"])
def test_text_under_the_name_of_something_else_is_read_and_noted(tmp_path, read_all, name):
    (tmp_path / name).write_text("plain words")
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["plain words"]
    assert notes.places == {f"named {Path(name).suffix.lower()}, read as text": [str(tmp_path / name)]}


def test_text_in_parquet_that_is_not_utf_8_is_kept_without_the_broken_bytes(tmp_path, read_all):
    column = pyarrow.Array.from_buffers(
        pyarrow.string(), 1, [None, pyarrow.py_buffer(b"\0\0\0\0\x06\0\0\0"), pyarrow.py_buffer(b"ab\xffcd ")]
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["abcd"]
    assert notes.places == {"broken bytes; left out": [f"{tmp_path / 'a.parquet'}:1"]}


def test_a_parquet_bomb_is_capped(tmp_path, read_all):
    table = pyarrow.table({"text": pyarrow.array(["word " * 200_000] * 200).dictionary_encode()})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    documents, notes = read_all(tmp_path)
    assert 1 < len(documents) < 40  # of 200 MB
    assert list(notes.counts)[-1] == "decompresses to more than 250 times its size; the rest is left out"


# --- OpenWebText -----------------------------------------------------------------------------------------------------


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def openwebtext():
    """Archive name -> file name -> text, as the real one has it."""
    pages = iter(range(1000))
    return {
        f"openwebtext/urlsf_subset{subset:02d}-{number}_data.xz": {
            f"{page:07d}-{page:032x}.txt": f"Page {page}.\n\nIt says “{'so ' * page}”.\r\n\n\nEnd.".encode()
            for page in (next(pages) for _ in range(5))
        }
        for subset in range(2)
        for number in range(1, 4)
    }


def test_openwebtext_gives_the_same_documents_as_downloaded_and_unpacked_once_and_twice(
    tmp_path, read_all, openwebtext
):
    archives = {name: lzma.compress(tar_of(files)) for name, files in openwebtext.items()}
    (tmp_path / "openwebtext.tar").write_bytes(tar_of(archives))
    (tmp_path / "openwebtext.tar.xz").write_bytes(lzma.compress(tar_of(archives)))
    for name, data in archives.items():
        once = tmp_path / "once" / name
        once.parent.mkdir(parents=True, exist_ok=True)
        once.write_bytes(data)
        for inner, text in openwebtext[name].items():
            twice = tmp_path / "twice" / inner
            twice.parent.mkdir(parents=True, exist_ok=True)
            twice.write_bytes(text)
    expected = [f"Page {page}.\nIt says “{'so ' * page}”.\nEnd." for page in range(30)]
    files_before = sorted(tmp_path.rglob("*"))
    for name in ("openwebtext.tar", "openwebtext.tar.xz", "once", "twice"):
        for source in (None, "openwebtext"):
            documents, notes = read_all(tmp_path / name, source=source)
            assert texts(documents) == expected
            assert not notes.counts
    assert sorted(tmp_path.rglob("*")) == files_before


def test_a_large_archive_of_openwebtext_is_streamed_and_gives_the_same(tmp_path, read_all, openwebtext, monkeypatch):
    name, files = next(iter(openwebtext.items()))
    path = tmp_path / Path(name).name
    path.write_bytes(lzma.compress(tar_of(files)))
    whole = read_all(path)[0]
    monkeypatch.setattr(sources, "SMALL_ARCHIVE_BYTES", 100)
    assert read_all(path)[0] == whole


def test_damage_inside_an_archive_of_openwebtext_is_noted_with_its_place(tmp_path, read_all, openwebtext):
    archives = {name: lzma.compress(tar_of(files)) for name, files in openwebtext.items()}
    names = list(archives)
    archives[names[0]] = archives[names[0]][:-60]
    archives[names[1]] = lzma.compress(tar_of({"../0000001-x.txt": b"out", "a.png": b"\x89PNG\0\0", "b.txt": b""}))
    archives[names[2]] = lzma.compress(b"no archive but text")
    (tmp_path / "a.tar").write_bytes(tar_of(archives))
    documents, notes = read_all(tmp_path)
    assert "no archive but text" in texts(documents)
    assert len(documents) >= 16
    where = {what: places[0].removeprefix(f"{tmp_path}/a.tar:") for what, places in notes.places.items()}
    assert where["archive member has an unsafe name; left out"] == f"{names[1]}:../0000001-x.txt"
    what = "not text, or a kind of file that is not read from such an archive; left out"
    assert where[what] == f"{names[1]}:a.png"
    assert where["empty file"] == f"{names[1]}:b.txt"
    assert where["compressed file is cut off; what came before is kept"].startswith(f"{names[0]} at byte ")


def test_archives_and_files_that_are_named_nearly_like_those_of_openwebtext_are_one_document_each(tmp_path, read_all):
    text = b"First paragraph.\n\nSecond paragraph."
    (tmp_path / "part_a_data.xz").write_bytes(lzma.compress(tar_of({"a.txt": text, "b.txt": text})))
    (tmp_path / "00012345-0123456789ABCDEFabcd.txt").write_bytes(text)
    (tmp_path / "no_archive_data.xz").write_bytes(lzma.compress(text))
    documents, notes = read_all(tmp_path)
    whole, halves = "First paragraph.\nSecond paragraph.", ["First paragraph.", "Second paragraph."]
    assert texts(documents) == [whole, *halves, whole, whole]
    assert not notes.counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "SMALL_ARCHIVE_BYTES", 100)
        assert read_all(tmp_path)[0] == documents


@pytest.mark.parametrize("source", [None, "jsonl"])
def test_an_archive_named_nearly_like_those_of_openwebtext_may_hold_json(tmp_path, read_all, source):
    lines = b'{"text": "one"}\n{"text": "two"}\n'
    (tmp_path / "my_data.xz").write_bytes(lzma.compress(tar_of({"a.jsonl": lines})))
    assert texts(read_all(tmp_path, source=source)[0]) == ["one", "two"]


def test_a_bomb_named_like_an_archive_of_openwebtext_is_capped(tmp_path, read_all):
    bomb = lzma.compress(tar_of({"0000000-" + "0" * 32 + ".txt": b"a bomb\n" * (100 * 2**20 // 7)}), preset=1)
    (tmp_path / "urlsf_subset00-1_data.xz").write_bytes(bomb)
    documents, notes = read_all(tmp_path)
    assert sum(map(len, texts(documents))) < 24 * 2**20
    assert "decompresses to more than 250 times its size; the rest is left out" in notes.counts


# --- Hugging Face datasets, builtin ----------------------------------------------------------------------------------


def test_a_local_dataset_is_read_from_either_kind_of_folder(tmp_path, read_all, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = [f"document {number}\nsecond line" for number in range(1000)]
    dataset = datasets.Dataset.from_dict({"body": rows, "other": range(1000)})
    dataset.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(train=dataset).save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    dataset.to_parquet(tmp_path / "files/train.parquet")
    (tmp_path / "lines").mkdir()
    dataset.to_json(tmp_path / "lines/train.jsonl")
    for name in ("saved", "splits", "files", "lines"):
        assert texts(read_all(f"hf:{tmp_path / name}", field="body")[0]) == rows, name
    with pytest.raises(UserError, match=r"no field 'text' but \['body', 'other'\]; use --field"):
        read_all(f"hf:{tmp_path / 'saved'}")
    documents, notes = read_all(f"hf:{tmp_path / 'saved'}", field="other")
    assert not documents
    assert notes.places["field 'other' is not text; left out"][0] == f"hf:{tmp_path / 'saved'}:1"
    datasets.DatasetDict(dev=dataset).save_to_disk(tmp_path / "dev")
    with pytest.raises(UserError, match=r"no split 'train' but \['dev'\]"):
        read_all(f"hf:{tmp_path / 'dev'}", field="body")


def run(script: str, *arguments: object, **environment: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment}).stdout


READ = """
import sys
import electrakit
from electrakit.config.corpus import CorpusConfig
from electrakit.data.read.formats import read_batch
from electrakit.data.read.notes import Notes
from electrakit.data.read.sources import cut_inputs, find_inputs
from electrakit.common.errors import UserError
config = CorpusConfig(inputs=(sys.argv[1],))
try:
    for batch in cut_inputs(find_inputs(config, Notes()), config, None):
        print(len(read_batch(batch, config)[0]))
except UserError as error:
    print(error)
"""


def test_without_the_datasets_library_the_error_says_what_to_install():
    assert "needs the datasets library; pip install 'electrakit[hf]'" in run(
        "import sys; sys.modules['datasets'] = None\n" + READ, "hf:any"
    )


def test_a_dataset_that_is_not_there_is_an_error_and_no_network_is_tried_when_offline():
    no_network = "import socket\ndef refuse(*_): raise SystemExit('network')\nsocket.socket.connect = refuse\n"
    for name in ("hf:nobody/nothing", "hf:/no/such/folder"):
        answer = run(no_network + READ, name, HF_HUB_OFFLINE="1")
        assert answer.startswith(f"cannot read the dataset '{name}'"), answer


def test_a_dataset_that_cannot_be_reached_is_one_quick_line(tmp_path):
    script = """
    import sys
    from electrakit.config.corpus import CorpusConfig
    from electrakit.data.read.notes import Notes
    from electrakit.data.read.sources import cut_inputs, find_inputs
    from electrakit.common.errors import UserError
    config = CorpusConfig(inputs=("hf:nobody/nothing",))
    try:
        list(cut_inputs(find_inputs(config, Notes()), config, None))
    except UserError as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},  # no server listens there
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("cannot find the dataset 'nobody/nothing' on the Hugging Face hub (")
    assert done.stdout.count("\n") == 1 and done.stdout.strip().endswith("or name a local folder")


@pytest.mark.long
def test_the_builtin_corpus_has_prose_and_no_paragraph_twice(monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 50_000)
    config = CorpusConfig(inputs=("builtin:python",), limit=100, workers=1)
    selection, lines = Selection(config), []
    for batch in map_corpus(config, find_inputs(config, Notes()), lines_of, "reading"):
        chosen = selection.choose(batch)
        lines += [line for is_chosen, one in zip(chosen, batch.value, strict=True) if is_chosen for line in one]
        if selection.is_full:
            break
    assert selection.num_documents == 100
    assert len(lines) == len(set(lines)) > 100
    with pytest.raises(UserError, match="there is builtin:python"):
        find_inputs(CorpusConfig(inputs=("builtin:ruby",)), Notes())


def lines_of(documents: list[Document], _: object) -> list[list[str]]:
    return [document.lines for document in documents]


# --- min_words, dedupe, limit ----------------------------------------------------------------------------------------


def test_min_words_leaves_out_short_documents_and_says_where_they_are(tmp_path, read_all):
    (tmp_path / "a.txt").write_text("\n\none two three\n\n\none\ntwo\n\none two\nthree four\n")
    documents, notes = read_all(tmp_path, min_words=3)
    assert texts(documents) == ["one two three", "one two\nthree four"]
    assert notes.places == {"document of fewer than 3 words; left out": [f"{tmp_path / 'a.txt'}:6"]}


def test_dedupe_and_limit_choose_the_first_ones(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n\n".join(f"document {number % 7}" for number in range(5000)))
    (tmp_path / "b.txt").write_text("document 3\n\ndocument 8\n\ndocument 9")
    config = CorpusConfig(inputs=(str(tmp_path),), dedupe=True, limit=8, workers=2)
    selection, chosen = Selection(config), []
    for batch in map_corpus(config, find_inputs(config, Notes()), lines_of, "reading"):
        chosen += [one[0] for is_chosen, one in zip(selection.choose(batch), batch.value, strict=True) if is_chosen]
    assert chosen == [f"document {number}" for number in (*range(7), 8)]
    assert selection.is_full


# --- cutting ---------------------------------------------------------------------------------------------------------


def batches_of(path: Path, **changes) -> tuple[list, CorpusConfig]:
    config = CorpusConfig(inputs=(str(path),), **changes)
    return list(cut_inputs(find_inputs(config, Notes()), config, WorkerPool(0))), config


LINES = st.lists(
    st.sampled_from(["", "", " ", "\t", "a", "word and word", "é ü", "“so”", "\u2003", "x" * 30, "\x0b", "𝔘nicode"]),
    max_size=30,
)
NEWLINES = st.sampled_from(["\n", "\r\n", "\r"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, newline=NEWLINES, splitting=st.sampled_from(["blank", "line"]), batch_bytes=st.integers(1, 60))
def test_cutting_never_changes_a_document_of_text(tmp_path, read_all, lines, newline, splitting, batch_bytes):
    (tmp_path / "a.txt").write_bytes(newline.join(lines).encode())
    assert_batches_change_nothing(batch_bytes, partial(read_all, tmp_path / "a.txt", documents=splitting))


def assert_batches_change_nothing(batch_bytes: int, read_all: Callable) -> None:
    """Documents and notes are the same, whole or cut into batches of about this size."""
    whole, notes = read_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH_BYTES", batch_bytes)
        in_batches, other_notes = read_all()
    assert in_batches == whole
    assert other_notes.as_json() == notes.as_json()


def wikipedia(pages: list[str]) -> str:
    return (
        "<mediawiki>\n"
        + "".join(
            f"<page>\n<title>T{number}</title>\n<ns>0</ns>\n<revision><text>{text}</text></revision>\n</page>\n"
            for number, text in enumerate(pages)
        )
        + "</mediawiki>\n"
    )


RECORDS = {
    "jsonl": lambda pages: "".join(json.dumps({"text": page}, ensure_ascii=False) + "\n" for page in pages),
    "wikiextractor": lambda pages: "".join(f'<doc id="1" title="a > b">\nT\n\n{page}\n\n</doc>\n' for page in pages),
    "wikipedia": wikipedia,
}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pages=st.lists(LINES.map("\n".join), min_size=1, max_size=6),
    kind=st.sampled_from(list(RECORDS)),
    newline=NEWLINES,
    batch_bytes=st.integers(1, 90),
)
def test_cutting_never_changes_a_record(tmp_path, read_all, pages, kind, newline, batch_bytes):
    (tmp_path / "a").write_bytes(RECORDS[kind](pages).replace("\n", newline).encode())
    assert_batches_change_nothing(batch_bytes, partial(read_all, tmp_path / "a", source=kind))


def squeezed(text: str) -> str:
    return " ".join(text.split()) or "a"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(
        st.lists(st.text("ab é”𝔘", min_size=1, max_size=30).map(squeezed), min_size=1, max_size=8).map("\n".join),
        max_size=6,
    ),
    splitting=st.sampled_from(["blank", "line", "file"]),
    batch_bytes=st.integers(1, 60),
    max_bytes=st.integers(8, 60),
)
def test_a_document_that_is_too_long_loses_nothing_and_its_parts_stay_together(
    tmp_path, read_all, documents, splitting, batch_bytes, max_bytes
):
    (tmp_path / "a.txt").write_bytes("\n\n".join(documents).encode())
    whole = read_all(tmp_path / "a.txt", documents=splitting)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH_BYTES", batch_bytes)
        patch.setattr(sources, "MAX_DOCUMENT_BYTES", max_bytes)
        parts = read_all(tmp_path / "a.txt", documents=splitting)[0]
    joined: list[list[Document]] = []
    for part in parts:
        if part.key is not None and joined and joined[-1][-1].key == part.key:
            joined[-1].append(part)
        else:
            joined.append([part])
    # equal neighbours have equal keys: what cannot be told apart is joined on the other side too
    assert "".join("".join(words(group)) for group in joined) == "".join(words(whole))
    assert len(joined) <= len(whole)
    if len({identity(document) for document in whole}) == len(whole) == len(joined):
        assert ["".join(words(group)) for group in joined] == ["".join(words([document])) for document in whole]
    for group in joined:
        assert len({identity(part) for part in group}) == 1


def test_words_are_cut_apart_only_where_there_is_no_space(tmp_path, read_all, monkeypatch):
    text = " ".join(f"word{number}" for number in range(5000))
    (tmp_path / "a.txt").write_text(f"first\n\n{text}\n\nlast")
    monkeypatch.setattr(sources, "BATCH_BYTES", 256)
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 1000)
    documents, notes = read_all(tmp_path)
    assert words(documents) == ["first", *text.split(), "last"]
    assert len({document.key for document in documents[1:-1]}) == 1
    assert documents[0].key is documents[-1].key is None
    assert notes.as_json() == {
        "document longer than 1,000 bytes; cut into several": {"count": 1, "first": [f"{tmp_path / 'a.txt'}:3"]}
    }


def test_a_copy_of_a_long_document_gives_the_same_parts_wherever_it_stands(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 64)
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 300)
    text = "\n".join(f"this is line {number}" for number in range(100))
    (tmp_path / "a.txt").write_text(f"{text}\n\nsomething else\n\n\n\n  {text}")
    documents, _ = read_all(tmp_path)
    middle = documents.index(Document(["something else"]))
    assert documents[:middle] == documents[middle + 1 :]


def test_a_record_that_is_too_long_is_left_out_and_only_that(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 300)
    monkeypatch.setattr(sources, "MAX_LONG_RECORD_BYTES", 300)
    for kind, write in RECORDS.items():
        for batch_bytes in (1, 7, 64, 1000):
            monkeypatch.setattr(sources, "BATCH_BYTES", batch_bytes)
            (tmp_path / "a").write_text(write(["one", "long " * 200, "two", "three"]))
            documents, notes = read_all(tmp_path, source=kind)
            assert [document.lines[-1] for document in documents] == ["one", "two", "three"], (kind, batch_bytes)
            line = {"jsonl": 2, "wikiextractor": 7, "wikipedia": 7}[kind]
            assert notes.places["record longer than 300 bytes; left out"] == [f"{tmp_path / 'a'}:{line}"]


def test_resuming_after_any_batch_gives_exactly_the_batches_that_remain(tmp_path, monkeypatch, openwebtext):
    monkeypatch.setattr(sources, "BATCH_BYTES", 200)
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 300)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("\n\n".join(f"document {number}" for number in range(100)))
    (corpus / "b.txt").write_bytes(b"long " * 500 + b"\n\nbroken \xff \xc3\xa9")
    (corpus / "c.jsonl").write_text('{"text": "one"}\nbroken\n' * 50)
    (corpus / "d.tar").write_bytes(
        tar_of({name: lzma.compress(tar_of(files)) for name, files in openwebtext.items()} | {"../x": b"", "e": b""})
    )
    (corpus / "e.gz").write_bytes(gzip.compress(os.urandom(300).hex().encode() + b"\n\nmore" * 300)[:-5])
    (corpus / "f.txt").write_text("")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["text", None] * 300}), corpus / "g.parquet")
    batches, config = batches_of(corpus)
    assert len(batches) > 30
    inputs = find_inputs(config, Notes())
    for number, batch in enumerate(batches):
        rest = list(cut_inputs(inputs, config, WorkerPool(0), batch.next_position))
        assert [(one.chunks, one.next_position, one.notes.as_json()) for one in rest] == [
            (one.chunks, one.next_position, one.notes.as_json()) for one in batches[number + 1 :]
        ]


# --- bad input -------------------------------------------------------------------------------------------------------


WRONG = {
    "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10,
    "program": b"\x7fELF\x02\x01\x01" + bytes(500),
    "paper.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<</Type /Catalog>>\nendobj\n",
    "random": bytes(hash_number * 7919 % 65537 % 256 for hash_number in range(4000)),
    "zeros.txt": bytes(5000),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_of_the_wrong_kind_is_left_out_and_named(tmp_path, read_all, name):
    (tmp_path / name).write_bytes(WRONG[name])
    (tmp_path / "good.txt").write_text("good")
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["good"]
    assert notes.places == {"not text, and no known kind of file; left out": [str(tmp_path / name)]}


@pytest.mark.parametrize("source", ["jsonl", "parquet", "wikipedia", "wikiextractor"])
@pytest.mark.parametrize("name", [*WRONG, "plain.txt"])
def test_a_source_that_is_forced_and_wrong_is_noted(tmp_path, read_all, source, name):
    (tmp_path / name).write_bytes(WRONG.get(name, b"Just some text.\n\nAnd more of it."))
    documents, notes = read_all(tmp_path, source=source)
    assert not documents
    assert any("left out" in what or "damaged" in what for what in notes.counts)


def test_nothing_usable_is_an_error_that_says_why(tmp_path, read_all):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.png").write_bytes(WRONG["picture.png"])
    (tmp_path / "c.txt").write_text(" \n\n \t\n")
    documents, notes = read_all(tmp_path)
    assert notes.counts["empty file"] == 2
    with pytest.raises(UserError, match=r"no usable text in .*: empty file \(.*a.txt\); not text") as error:
        require_documents(len(documents), notes, CorpusConfig(inputs=(str(tmp_path),)))
    assert "\n" not in str(error.value)


def write_long_texts(folder: Path, kind: str, written: list[str]) -> str:
    """The texts as records of one kind; the name of the input."""
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": written}), folder / "a.parquet")
    elif kind == "jsonl":
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in written))
    else:
        datasets.Dataset.from_dict({"text": written}).save_to_disk(str(folder / "set"))
        return f"hf:{folder / 'set'}"
    return str(folder)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "hf"])
def test_a_long_text_in_a_record_is_cut_into_documents_that_stay_together(tmp_path, read_all, monkeypatch, kind):
    monkeypatch.setattr(sources, "BATCH_BYTES", 64)
    monkeypatch.setattr(sources, "MAX_DOCUMENT_BYTES", 1000)
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 1500)
    long = "\n".join(f"thís is line {number} ☃" for number in range(200))
    name = write_long_texts(tmp_path, kind, ["one", long, "two", "", long, "three"])
    documents, notes = read_all(name)
    together = [document for document in documents if document.key is not None]
    assert "\n".join(texts(together)) == f"{long}\n{long}"
    assert len({identity(document) for document in together}) == 1  # they are copies
    assert [texts([one]) for one in documents if one.key is None] == [["one"], ["two"], ["three"]]
    assert notes.counts == {
        "document longer than 1,000 bytes; cut into several": 2,
        "document without text; left out": 1,
    }
    assert [place.rsplit(":")[-1] for place in notes.places["document longer than 1,000 bytes; cut into several"]] == [
        "2",
        "5",
    ]


def test_a_long_record_without_the_field_is_left_out_and_named(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 300)
    lines = [json.dumps({"body": "x" * 400}), json.dumps({"text": "good"}), "y" * 500, json.dumps({"text": "last"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["good", "last"]
    assert notes.places["record longer than 300 bytes and not as it should be; left out"] == [
        f"{tmp_path / 'a.jsonl'}:1",
        f"{tmp_path / 'a.jsonl'}:3",
    ]


@pytest.mark.parametrize(("name", "line"), [("a.txt", "a\n"), ("a.jsonl", '{"text": "a"}\n')])
def test_a_batch_has_few_documents_however_short_they_are(tmp_path, name, line):
    (tmp_path / name).write_text(line * 20_000)
    config = CorpusConfig(inputs=(str(tmp_path),), documents="line")
    sizes = [
        len(read_batch(batch, config)[0]) for batch in cut_inputs(find_inputs(config, Notes()), config, WorkerPool(0))
    ]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 2 * 4096


def test_what_is_read_from_standard_input_counts_for_the_progress(tmp_path):
    script = """
    from electrakit.config.corpus import CorpusConfig
    from electrakit.data.read.notes import Notes
    from electrakit.data.read.sources import cut_inputs, find_inputs
    config = CorpusConfig(inputs=("-",))
    print([batch.num_bytes_read for batch in cut_inputs(find_inputs(config, Notes()), config, None)][-1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], input=b"word " * 500_000, capture_output=True, check=True
    )
    assert int(done.stdout) == 2_500_000


def test_the_text_of_a_dataset_counts_for_the_progress(tmp_path):
    config = CorpusConfig(inputs=(write_long_texts(tmp_path, "hf", ["a" * 3000] * 1000),))
    batches = list(cut_inputs(find_inputs(config, Notes()), config, WorkerPool(0)))
    assert batches[-1].num_bytes_read == 3_000_000
    assert 0 < batches[0].num_bytes_read < 3_000_000


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_line_of_100_mb_is_read_whole_in_little_memory(tmp_path):
    with (tmp_path / "a.txt").open("wb") as file:
        for _ in range(100):
            file.write(b"some words " * (10**6 // 11))
    (tmp_path / "counting.py").write_text(
        "import re\n"
        "def count(documents, identities):\n"
        "    num_mb = int(re.search('VmHWM:(.*)kB', open('/proc/self/status').read())[1]) // 1024\n"
        "    num_words = sum(len(line.split()) for one in documents for line in one.lines)\n"
        "    return num_words, set(identities.tolist()), num_mb\n"
    )
    script = """
    import re, sys
    from counting import count
    from electrakit.config.corpus import CorpusConfig
    from electrakit.data.corpus import map_corpus
    from electrakit.data.read.notes import Notes
    from electrakit.data.read.sources import find_inputs
    config = CorpusConfig(inputs=(sys.argv[1],), workers=1)
    num_words, keys = 0, set()
    for batch in map_corpus(config, find_inputs(config, Notes()), count, "reading"):
        num_words, keys = num_words + batch.value[0], keys | batch.value[1]
    print(num_words, len(keys), batch.value[2], int(re.search('VmHWM:(.*)kB', open('/proc/self/status').read())[1]) // 1024)
    """
    num_words, num_keys, *num_mb = map(int, run(script, tmp_path / "a.txt", PYTHONPATH=str(tmp_path)).split())
    assert num_words == 100 * 2 * (10**6 // 11)
    assert num_keys == 1
    assert sum(num_mb) < 700


LONG = {
    "four.parquet": lambda path: pyarrow.parquet.write_table(
        pyarrow.table({"text": [f"{number} words of a story\n" * 1_000_000 for number in range(4)]}), path
    ),
    "two.jsonl": lambda path: path.write_text(
        "".join(
            json.dumps({"text": f"{number} words 😀\n" * 2_000_000}, ensure_ascii=False) + "\n" for number in range(2)
        )
    ),
    "lines.txt": lambda path: path.write_text("a\n" * 1_100_000),
    "page.xml": lambda path: path.write_text(
        "<mediawiki>"
        + "<page><ns>0</ns><revision><text>{}</text></revision></page>".format("a [[b]] c\n\n" * 400_000) * 4
    ),
}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", LONG)
def test_preparing_takes_little_memory_whatever_the_shape_of_the_corpus(tmp_path, name):
    (tmp_path / "words.txt").write_text("words of a story " * 100)
    electrakit.train_tokenizer([tmp_path / "words.txt"], vocab_size=100, out=tmp_path / "tokenizer")
    LONG[name](tmp_path / name)
    command = ["prepare", str(tmp_path / name), "--documents", "line", "--workers", "2"]
    command += ["--tokenizer", str(tmp_path / "tokenizer"), "--out", str(tmp_path / "shards")]
    peaks: dict[int, int] = {}
    with subprocess.Popen([sys.executable, "-m", "electrakit", *command], stderr=subprocess.DEVNULL) as main:
        while main.poll() is None:
            for process in [main.pid, *children_of(main.pid)]:
                peaks[process] = max(peaks.get(process, 0), peak_mb(process))
            time.sleep(0.02)
    assert main.returncode == 0
    assert 100 < sum(peaks.values()) < 1200


def peak_mb(process: int) -> int:
    """The system's own record: none is missed between two looks."""
    try:
        return int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[0]) // 1000
    except (OSError, IndexError):
        return 0


def five_texts() -> bytes:
    return tar_of({f"{number}.txt": f"document {number}".encode() for number in range(5)})


@pytest.mark.parametrize("damage", ["flipped", "zeroed", "cut between members", "cut in a header"])
def test_a_damaged_header_in_a_tar_is_not_its_end(tmp_path, read_all, damage):
    """tarfile ends quietly there: of an archive with five members, two would come out, without an error."""
    data, third = bytearray(five_texts()), 4 * 512
    if damage == "flipped":
        data[third + 3] ^= 1
    elif damage == "zeroed":
        data[third : third + 512] = bytes(512)
    else:
        data = data[: third + (100 if "in a" in damage else 0)]
    (tmp_path / "a.tar").write_bytes(data)
    documents, notes = read_all(tmp_path / "a.tar")
    assert [document.lines for document in documents] == [["document 0"], ["document 1"]]
    assert notes.counts, damage


def test_a_second_tar_behind_the_first_is_named(tmp_path, read_all):
    (tmp_path / "two.tar").write_bytes(five_texts() + five_texts())
    documents, notes = read_all(tmp_path / "two.tar")
    assert len(documents) == 5
    assert notes.counts == {"data after the end of an archive; left out": 1}
    (tmp_path / "one.tar").write_bytes(five_texts() + bytes(100_000))
    assert not read_all(tmp_path / "one.tar")[1].counts


def test_a_cut_off_zip_of_zips_is_not_taken_for_the_last_zip_inside(tmp_path, read_all):
    def zip_of(files: dict[str, bytes]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:  # stored
            for name, data in files.items():
                archive.writestr(name, data)
        return file.getvalue()

    inner = {f"{number}.zip": zip_of({f"{number}.txt": f"book {number}".encode() + b"." * 100}) for number in range(6)}
    whole = zip_of({"first.txt": b"the first", **inner})
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) * 6 // 10])
    documents, notes = read_all(tmp_path / "cut.zip")
    found = " ".join(line for document in documents for line in document.lines)
    assert "the first" in found and "book 0" in found and "book 1" in found
    assert notes.counts

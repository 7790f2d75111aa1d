"""Parquet pages: their headers are read as pyarrow wrote them, and a page that would fill the memory is left out."""

import subprocess
import sys

import hypothesis
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies

from electrakit.data.read.parquet_pages import MAX_PAGE_BYTES, Page, ThriftReader, pages_of

MEGABYTE = 2**20


def columns_of(path):
    metadata = pyarrow.parquet.ParquetFile(path).metadata
    return [metadata.row_group(number).column(0) for number in range(metadata.num_row_groups)]


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_the_pages_of_a_column_are_all_found(tmp_path, compression, version, use_dictionary):
    texts = [f"text {number % 700} " * 20 for number in range(5_000)]
    options = {"compression": compression, "data_page_version": version, "use_dictionary": use_dictionary}
    pyarrow.parquet.write_table(
        pyarrow.table({"text": texts}),
        tmp_path / "a",
        row_group_size=2_000,
        data_page_size=9_000,
        write_batch_size=50,
        **options,
    )
    with (tmp_path / "a").open("rb") as file:
        for column in columns_of(tmp_path / "a"):
            pages = list(pages_of(file, column))
            assert pages and (pages[0].kind == 2) == use_dictionary
            headers = column.total_compressed_size - sum(page.num_packed for page in pages)
            assert headers > 0
            assert sum(page.num_unpacked for page in pages) + headers == column.total_uncompressed_size


@hypothesis.given(strategies.binary(max_size=200))
def test_damaged_headers_are_value_errors(content):
    try:
        ThriftReader(content).read_struct()
    except ValueError:
        return
    assert content


def test_a_page_is_too_large_by_its_size_or_as_a_bomb():
    assert not Page(0, MAX_PAGE_BYTES, MAX_PAGE_BYTES // 5).is_too_large
    assert Page(0, MAX_PAGE_BYTES + 1, MAX_PAGE_BYTES).is_too_large
    assert Page(2, 300 * MEGABYTE, 100 * MEGABYTE).is_too_large and Page(0, 70 * MEGABYTE, 70_000).is_too_large
    assert not Page(0, 60 * MEGABYTE, 60).is_too_large


READ = """
import resource, sys
from pathlib import Path
from electrakit.data.read.files import Allowance
from electrakit.data.read.notes import Notes
from electrakit.data.read.parquet import parquet_values
import pyarrow.parquet
notes, before = Notes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
path = Path(sys.argv[1])
with path.open("rb") as file:
    count = sum(1 for _ in parquet_values(file, "a", "text", 2**24, notes, Allowance(lambda: path.stat().st_size)))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, *notes.counts)
"""


@pytest.mark.promise("Data", "parquet file with one value of 300 MB", "left out and noted, little memory")
@pytest.mark.long
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_one_huge_value_takes_little_memory(tmp_path, use_dictionary):
    """The second row group is read."""
    schema = pyarrow.schema([("text", pyarrow.large_string())])
    options = {"compression": "zstd", "use_dictionary": use_dictionary, "dictionary_pagesize_limit": 2**30}
    with pyarrow.parquet.ParquetWriter(tmp_path / "a", schema, **options) as writer:
        writer.write_table(pyarrow.table({"text": ["a" * 300 * MEGABYTE]}, schema), row_group_size=1)
        writer.write_table(pyarrow.table({"text": ["small"]}, schema))
    assert (tmp_path / "a").stat().st_size < MEGABYTE
    command = [sys.executable, "-c", READ, str(tmp_path / "a")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(maxsplit=2)
    assert said[0] == "1" and said[2].strip() == "part of a parquet file that is too large to unpack; left out"
    assert int(said[1]) < 100 * 1024  # kB


def test_a_text_of_impossible_length_is_a_damaged_header():
    with pytest.raises(ValueError, match="cut off"):
        ThriftReader(b"\x18" + b"\xff" * 9 + b"\x01").read_struct()


@pytest.mark.parametrize("head", [b"\x19", b"\x1c"])
def test_lists_and_structs_in_one_another_without_end_are_a_damaged_header(head):
    with pytest.raises(ValueError, match="too deep"):
        ThriftReader(head * 5000).read_struct()

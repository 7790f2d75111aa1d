"""Compressed files of one stream or many: nothing is lost without a word."""

import bz2
import gzip
import io
import lzma
import random
import tarfile
from dataclasses import replace

import pytest
import zstandard

from electrakit.data.read.compression import Counted, compression_of, decompressing
from electrakit.data.read.notes import Notes

COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
SENTENCES = [f"Sentence number {number} of the story is told here." for number in range(3_000)]
PARTS = ["\n\n".join(SENTENCES[start : start + 1000]).encode() + b"\n\n" for start in (0, 1000, 2000)]
HOLE = "damaged part of a compressed file; left out"
STOP = "damaged file; what came before is kept"


def texts(documents):
    return ["\n".join(document.lines) for document in documents]


@pytest.mark.parametrize("suffix", [".xz", ".bz2"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("place", [*range(10), 12, 40, -30, -5])
def test_damage_to_one_stream_costs_no_other_and_is_named(tmp_path, read_all, suffix, which, place):
    streams = [bytearray(COMPRESS[suffix](part)) for part in PARTS]
    streams[which][place] ^= 0x55
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(streams))
    documents, notes = read_all(path)
    if compression_of(bytes(streams[0][:10])) is None:  # nothing says that it is compressed at all
        assert not documents and notes.counts
        return
    found = texts(documents)
    for number, part in enumerate(PARTS):
        if number != which:
            assert set(part.decode().split("\n\n")[:-1]) <= set(found)
    assert notes.counts == {HOLE: 1}
    next_stream = sum(map(len, streams[: which + 1]))
    where = notes.places[HOLE][0]
    assert where.startswith(f"{path} at byte ")
    assert where.endswith(f"; read on at byte {next_stream:,} of the compressed file")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_last_stream_that_is_damaged_in_its_first_bytes_is_named(tmp_path, read_all, suffix):
    last = COMPRESS[suffix](PARTS[1])
    for place in range(3):
        damaged = bytearray(last)
        damaged[place] ^= 0x55
        first = COMPRESS[suffix](PARTS[0])
        (tmp_path / "a").write_bytes(first + damaged)
        documents, notes = read_all(tmp_path / "a")
        assert texts(documents) == SENTENCES[:1000]
        assert notes.counts == {STOP: 1}
        assert notes.places[STOP][0].startswith(f"{tmp_path / 'a'} at byte {len(PARTS[0]):,}: ")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_garbage_behind_the_end_is_named(tmp_path, read_all, suffix):
    (tmp_path / "a").write_bytes(COMPRESS[suffix](PARTS[0]) + b"garbage garbage garbage")
    documents, notes = read_all(tmp_path / "a")
    assert texts(documents) == SENTENCES[:1000]
    assert notes.counts == {STOP: 1}


@pytest.mark.parametrize("num_zeros", [4, 512, 70_000])
def test_zeros_behind_a_stream_of_xz_are_padding(tmp_path, read_all, num_zeros):
    (tmp_path / "a").write_bytes(b"".join(lzma.compress(part) + bytes(num_zeros) for part in PARTS))
    documents, notes = read_all(tmp_path / "a")
    assert texts(documents) == SENTENCES
    assert not notes.counts
    (tmp_path / "a").write_bytes(lzma.compress(PARTS[0]) + bytes(num_zeros + 1))
    documents, notes = read_all(tmp_path / "a")
    assert texts(documents) == SENTENCES[:1000]
    assert notes.counts == {STOP: 1}


@pytest.mark.parametrize("suffix", [".xz", ".bz2"])
@pytest.mark.parametrize("place", [3, 40])
def test_an_archive_with_a_hole_is_not_read_as_if_it_were_text(tmp_path, read_all, suffix, place):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, part in enumerate(PARTS):
            entry = tarfile.TarInfo(f"{number}.txt")
            entry.size = len(part)
            archive.addfile(entry, io.BytesIO(part))
    data = file.getvalue()
    streams = [bytearray(COMPRESS[suffix](data[start : start + 30_000])) for start in range(0, len(data), 30_000)]
    streams[2][place] ^= 0x55
    (tmp_path / "a.tar").write_bytes(b"".join(streams))
    documents, notes = read_all(tmp_path, documents="file")
    found = b"".join("\n\n".join(document.lines).encode() for document in documents)
    assert 50_000 < len(found) < 62_000 and b"\0" not in found
    assert list(notes.counts) == [STOP]  # once, not for each layer again


def test_streams_of_any_number_and_size_give_what_was_put_in():
    chance = random.Random(0)
    for suffix in (".xz", ".bz2", ".zst"):
        for num_read in (1, 7, 512, 2**16):
            pieces = [chance.randbytes(chance.choice([0, 1, 100, 5_000])) for _ in range(20)]
            packed = b"".join(map(COMPRESS[suffix], pieces))
            compression = replace(compression_of(packed[:10]), num_read=num_read)
            notes = Notes()
            stream = decompressing(Counted(io.BufferedReader(io.BytesIO(packed))), compression, "a", notes)
            found = b""
            while data := stream.read1(chance.choice([1, 50, 10_000])):
                found += data
            assert found == b"".join(pieces)
            assert not notes.counts

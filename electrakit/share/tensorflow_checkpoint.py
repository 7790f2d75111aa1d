"""A TensorFlow checkpoint in, its tensors out as numpy arrays; TensorFlow is not needed, and nothing that is read can run code.

    model.ckpt-1000.index                    a table in LevelDB's format: each tensor's name, and where its numbers are
    model.ckpt-1000.data-00000-of-00002      the numbers, as they were in memory

This is the format that TensorFlow has written since 1.0 ("V2"). Every block of the index and every tensor has a checksum, and what
is read is checked against it.
"""

import contextlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electrakit.errors import UserError
from electrakit.share.crc32c import masked_crc32c

MAGIC = 0xDB4775248B80FB57  # the last eight bytes of a LevelDB table
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # behind each block: how it is compressed, and its checksum
MAX_DIMENSIONS = 8
BFLOAT16 = 14
# TensorFlow's numbers for types
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", BFLOAT16: "<u2", 19: "<f2"}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # how a field of a protobuf message is written


class Damage(Exception):
    """What is wrong with a file, and what helps; whoever knows its name turns this into a UserError."""

    def __init__(self, what: str, way_out: str = "copy or download the checkpoint again") -> None:
        super().__init__(f"{what}; {way_out}")


@dataclass(frozen=True)
class Entry:
    """Where a tensor is, and what it is."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    num_bytes: int
    checksum: int
    has_slices: bool


class TensorFlowCheckpoint:
    """The tensors of a checkpoint, by name: `checkpoint.shapes["global_step"]`, `checkpoint.read("global_step")`."""

    def __init__(self, prefix: Path) -> None:
        """Read the index; `prefix` is the name of the files before `.index`."""
        self.prefix = prefix
        self.index = prefix.with_name(f"{prefix.name}.index")
        with naming(self.index):
            table = dict(read_table(self.index.read_bytes()))
            if b"" not in table:
                raise Damage("it is a table, but not of a checkpoint: the header is missing")
            self.num_shards = read_header(table.pop(b""))
            self.entries = {
                name.decode("utf-8", "backslashreplace"): read_entry(value) for name, value in table.items()
            }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, once it is sure that there are as many numbers."""
        self.locate(name)
        return self.entries[name].shape

    def read(self, name: str) -> np.ndarray:
        """A tensor, checked; bfloat16, which numpy does not have, as float32."""
        path, dtype = self.locate(name)
        entry = self.entries[name]
        with naming(path, f"{name!r} "):
            numbers = np.fromfile(path, dtype, math.prod(entry.shape), offset=entry.offset)
            if masked_crc32c(numbers) != entry.checksum:
                raise Damage("is not what was written: the checksum differs")
            if entry.dtype == BFLOAT16:  # the upper half of a float32
                numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
            try:
                return numbers.reshape(entry.shape)
            except ValueError:  # no numbers at all, in a shape that numpy does not have
                raise Damage(f"has the shape {entry.shape}") from None

    def locate(self, name: str) -> tuple[Path, np.dtype]:
        """The file of a tensor that is there in full length, and the type of its numbers."""
        entry = self.entries[name]
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        with naming(path, f"{name!r} "):
            if entry.dtype not in DTYPES:
                raise Damage(f"is of TensorFlow's type {entry.dtype}, which is none of numbers", "store float32")
            if entry.has_slices:
                raise Damage("is a partitioned variable, in slices", "save it whole, with TensorFlow")
            dtype = np.dtype(DTYPES[entry.dtype])
            if len(entry.shape) > MAX_DIMENSIONS or math.prod(entry.shape) * dtype.itemsize != entry.num_bytes:
                raise Damage(f"has {entry.num_bytes:,} bytes, which is not what the shape {entry.shape} takes")
            end, file_end = entry.offset + entry.num_bytes, path.stat().st_size
            if end > file_end:
                raise Damage(f"ends at byte {end:,}, the file at byte {file_end:,}")
        return path, dtype


@contextlib.contextmanager
def naming(path: Path, part: str = "") -> Iterator[None]:
    """What is wrong inside is the user's to mend, and told with the file's name."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy all files of the checkpoint into one folder") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except Damage as damage:
        raise UserError(f"cannot read {path}: {part}{damage}") from None


# --- the table: LevelDB's format ---------------------------------------------------------------------------------------


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in their order."""
    if len(content) < FOOTER_BYTES:
        raise Damage(f"it has {len(content)} bytes, an index has {FOOTER_BYTES} or more")
    footer = content[-FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != MAGIC:
        raise Damage("it does not end as an index ends; it was cut off, or is another kind of file")
    _, place = read_handle(footer, 0)  # of blocks that TensorFlow leaves empty
    handle, _ = read_handle(footer, place)
    for _, value in read_block(content, *handle):
        yield from read_block(content, *read_handle(value, 0)[0])


def read_handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Where a block is, (offset, length), and where the handle ends."""
    offset, place = read_varint(data, place)
    length, place = read_varint(data, place)
    return (offset, length), place


def read_block(content: bytes, offset: int, length: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of one block. A key is stored as what differs from the key before it."""
    end = offset + length
    if length < 4 or end + TRAILER_BYTES > len(content):
        raise Damage(f"a block of {length:,} bytes at byte {offset:,} is not within its {len(content):,} bytes")
    if masked_crc32c(content[offset : end + 1]) != int.from_bytes(content[end + 1 : end + TRAILER_BYTES], "little"):
        raise Damage(f"the block at byte {offset:,} is not what was written: the checksum differs")
    if content[end] != 0:
        raise Damage(f"the block at byte {offset:,} is compressed", "save it with TensorFlow, which does not do that")
    num_restarts = int.from_bytes(content[end - 4 : end], "little")  # for searching; we read from first to last
    entries = content[offset : max(offset, end - 4 - 4 * num_restarts)]
    place, key = 0, b""
    while place < len(entries):
        num_shared, place = read_varint(entries, place)
        num_own, place = read_varint(entries, place)
        num_value, place = read_varint(entries, place)
        if num_shared > len(key) or place + num_own + num_value > len(entries):
            raise Damage(f"an entry in the block at byte {offset:,} is longer than the block")
        key = key[:num_shared] + entries[place : place + num_own]
        place += num_own + num_value
        yield key, entries[place - num_value : place]


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """A whole number, seven bits a byte, and the place behind it."""
    number = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise Damage("a number in it does not end")


# --- what the table's values say: a few of TensorFlow's protobuf messages ------------------------------------------------


def read_header(data: bytes) -> int:
    """Of BundleHeaderProto: the number of data files."""
    fields = read_message(data, {1: VARINT, 2: VARINT})
    if last(fields, 2):
        raise Damage("it was written by a big-endian machine", "save it on another one")
    return last(fields, 1)


def read_entry(data: bytes) -> Entry:
    """Of BundleEntryProto: all of it."""
    kinds = {1: VARINT, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: BYTES}
    fields = read_message(data, kinds)
    dimensions = [
        last(read_message(dimension, {1: VARINT}), 1)
        for shape in fields.get(2, [])[-1:]
        for dimension in read_message(shape, {2: BYTES}).get(2, [])
    ]
    numbers = {number: last(fields, number) for number in (1, 3, 4, 5, 6)}
    return Entry(
        dtype=numbers[1],
        shape=tuple(dimensions),
        shard=numbers[3],
        offset=numbers[4],
        num_bytes=numbers[5],
        checksum=numbers[6],
        has_slices=7 in fields,
    )


def last(fields: dict[int, list[Any]], number: int) -> int:
    """A number, of which the last one counts; one that is 0 is not written."""
    return fields.get(number, [0])[-1]


def read_message(data: bytes, kinds: dict[int, int]) -> dict[int, list[Any]]:
    """The fields of a protobuf message that are of interest, with all their values."""
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        value: Any
        if kind == VARINT:
            value, place = read_varint(data, place)
        else:
            length, place = read_varint(data, place) if kind == BYTES else ({FIXED64: 8, FIXED32: 4}.get(kind), place)
            if length is None or place + length > len(data):
                raise Damage("an entry of it cannot be understood")
            raw, place = data[place : place + length], place + length
            value = raw if kind == BYTES else struct.unpack("<Q" if kind == FIXED64 else "<I", raw)[0]
        if number in kinds:
            if kind != kinds[number]:
                raise Damage("an entry of it cannot be understood")
            found.setdefault(number, []).append(value)
    return found

"""Reads the tensors of a TensorFlow checkpoint as numpy arrays, without TensorFlow.

    model.ckpt-1000.index                    a table in LevelDB's format: the name of each tensor, and where its values are
    model.ckpt-1000.data-00000-of-00002      the values, as they were in memory

This is the format that TensorFlow has written since 1.0 ("V2"). Every checksum is checked. Nothing that is read can run code.
"""

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electrakit.common.errors import UserError

MAGIC = 0xDB4775248B80FB57  # the last eight bytes of a LevelDB table
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # after each block: its compression and its checksum
MAX_DIMENSIONS = 8
BFLOAT16 = 14
# TensorFlow's numbers for types
TF_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", BFLOAT16: "<u2", 19: "<f2"}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
ALL_BITS = 0xFFFFFFFF
CHECKSUM_DELTA = 0xA282EAD8  # LevelDB changes stored checksums, so that they are not mistaken for data
CHECKSUM_LANES = 4096


class DamagedFile(Exception):
    """What is wrong with a file and what helps; `errors_name` adds the file's name and makes it a UserError."""

    def __init__(self, problem: str, way_out: str = "copy or download the checkpoint again") -> None:
        super().__init__(f"{problem}; {way_out}")


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor is stored, and its type and shape."""

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
        with errors_name(self.index):
            table = dict(read_table(self.index.read_bytes()))
            if b"" not in table:
                raise DamagedFile("it is a table, but not of a checkpoint: the header is missing")
            self.num_shards = read_header(table.pop(b""))
            self.entries = {
                name.decode("utf-8", "backslashreplace"): read_entry(value) for name, value in table.items()
            }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def read(self, name: str) -> np.ndarray:
        """A tensor, checked; bfloat16, which numpy does not have, as float32."""
        path, dtype = self.locate(name)
        entry = self.entries[name]
        with errors_name(path, f"{name!r} "):
            values = np.fromfile(path, dtype, math.prod(entry.shape), offset=entry.offset)
            if masked_crc32c(values.view(np.uint8)) != entry.checksum:
                raise DamagedFile("is not what was written: the checksum differs")
            if entry.dtype == BFLOAT16:  # the upper half of a float32
                values = (values.astype(np.uint32) << 16).view(np.float32)
            try:
                return values.reshape(entry.shape)
            except ValueError:  # an empty tensor in a shape that numpy does not support
                raise DamagedFile(f"has the shape {entry.shape}") from None

    def locate(self, name: str) -> tuple[Path, np.dtype]:
        """The data file of a tensor, after a check that it holds all of the tensor, and the type of its values."""
        entry = self.entries[name]
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.num_shards:05d}")
        with errors_name(path, f"{name!r} "):
            if entry.dtype not in TF_DTYPES:
                raise DamagedFile(f"is of TensorFlow's type {entry.dtype}, which is not numeric", "store float32")
            if entry.has_slices:
                raise DamagedFile("is a partitioned variable, in slices", "save it unpartitioned, with TensorFlow")
            dtype = np.dtype(TF_DTYPES[entry.dtype])
            if len(entry.shape) > MAX_DIMENSIONS or math.prod(entry.shape) * dtype.itemsize != entry.num_bytes:
                raise DamagedFile(f"has {entry.num_bytes:,} bytes, which is not what the shape {entry.shape} takes")
            end, file_end = entry.offset + entry.num_bytes, path.stat().st_size
            if end > file_end:
                raise DamagedFile(f"ends at byte {end:,}, the file at byte {file_end:,}")
        return path, dtype


@contextlib.contextmanager
def errors_name(path: Path, tensor: str = "") -> Iterator[None]:
    """Turn what is wrong with a file into a UserError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy all files of the checkpoint into one folder") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except DamagedFile as damage:
        raise UserError(f"cannot read {path}: {tensor}{damage}") from None


# --- the table: LevelDB's format ---------------------------------------------------------------------------------------


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, in their order."""
    if len(content) < FOOTER_BYTES:
        raise DamagedFile(f"it has {len(content)} bytes, an index has {FOOTER_BYTES} or more")
    footer = content[-FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != MAGIC:
        raise DamagedFile("it does not end as an index ends; it was cut off, or is another kind of file")
    _, _, offset, length = read_varints(footer, 4)  # first, those of the meta blocks, which TensorFlow leaves empty
    for _, value in read_block(content, offset, length):
        yield from read_block(content, *read_varints(value, 2))


def read_varints(data: bytes, count: int) -> list[int]:
    numbers, place = [], 0
    for _ in range(count):
        number, place = read_varint(data, place)
        numbers.append(number)
    return numbers


def read_block(content: bytes, offset: int, length: int) -> Iterator[tuple[bytes, bytes]]:
    """The entries of one block. A key is stored as what differs from the key before it."""
    end = offset + length
    if length < 4 or end + TRAILER_BYTES > len(content):
        raise DamagedFile(f"a block of {length:,} bytes at byte {offset:,} is not within its {len(content):,} bytes")
    checksum = int.from_bytes(content[end + 1 : end + TRAILER_BYTES], "little")
    if masked_crc32c(np.frombuffer(content[offset : end + 1], np.uint8)) != checksum:
        raise DamagedFile(f"the block at byte {offset:,} is not what was written: the checksum differs")
    if content[end] != 0:
        raise DamagedFile(f"the block at byte {offset:,} is compressed", "save it with TensorFlow, uncompressed")
    num_restarts = int.from_bytes(content[end - 4 : end], "little")  # for searching; we read from first to last
    entries = content[offset : max(offset, end - 4 - 4 * num_restarts)]
    place, key = 0, b""
    while place < len(entries):
        num_shared, place = read_varint(entries, place)
        num_new, place = read_varint(entries, place)
        num_value, place = read_varint(entries, place)
        if num_shared > len(key) or place + num_new + num_value > len(entries):
            raise DamagedFile(f"an entry in the block at byte {offset:,} is longer than the block")
        key = key[:num_shared] + entries[place : place + num_new]
        place += num_new + num_value
        yield key, entries[place - num_value : place]


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer, seven bits in each byte, and the place behind it."""
    number = 0
    for shift, byte in zip(range(0, 70, 7), data[place : place + 10], strict=False):
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place + shift // 7 + 1
    raise DamagedFile("a number in it does not end")


# --- the values of the table: protobuf messages of TensorFlow ------------------------------------------------------------


def read_header(data: bytes) -> int:
    """The number of data files, from a BundleHeaderProto."""
    fields = read_message(data, {1: VARINT, 2: VARINT})
    if last(fields, 2):
        raise DamagedFile("it was written by a big-endian machine", "save it on another one")
    return last(fields, 1)


def read_entry(data: bytes) -> TensorEntry:
    """A BundleEntryProto."""
    fields = read_message(data, {1: VARINT, 2: BYTES, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED32, 7: BYTES})
    dimensions = [
        last(read_message(dimension, {1: VARINT}), 1)
        for shape in fields.get(2, [])[-1:]
        for dimension in read_message(shape, {2: BYTES}).get(2, [])
    ]
    return TensorEntry(
        dtype=last(fields, 1),
        shape=tuple(dimensions),
        shard=last(fields, 3),
        offset=last(fields, 4),
        num_bytes=last(fields, 5),
        checksum=last(fields, 6),
        has_slices=7 in fields,
    )


def last(fields: dict[int, list[Any]], number: int) -> int:
    """The last value of a field, which counts; protobuf does not write a 0."""
    return fields.get(number, [0])[-1]


def read_message(data: bytes, wire_types: dict[int, int]) -> dict[int, list[Any]]:
    """The values of those fields of a protobuf message that are in `wire_types`."""
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        number, wire_type = tag >> 3, tag & 7
        if wire_type not in (VARINT, BYTES, *FIXED_SIZES) or wire_types.get(number, wire_type) != wire_type:
            raise DamagedFile("an entry of it cannot be understood")
        value: Any
        if wire_type == VARINT:
            value, place = read_varint(data, place)
        else:
            length, place = (FIXED_SIZES[wire_type], place) if wire_type != BYTES else read_varint(data, place)
            if place + length > len(data):
                raise DamagedFile("an entry of it cannot be understood")
            raw, place = data[place : place + length], place + length
            value = raw if wire_type == BYTES else int.from_bytes(raw, "little")
        if number in wire_types:
            found.setdefault(number, []).append(value)
    return found


# --- checksums -----------------------------------------------------------------------------------------------------------


def masked_crc32c(data: np.ndarray) -> int:
    """The checksum of bytes (N) as LevelDB and TensorFlow store it."""
    try:
        from google_crc32c import value as crc32c  # of the extra [tensorflow]: some 50 times as fast
    except ImportError:
        crc32c = numpy_crc32c
    checksum = crc32c(data)
    return (((checksum >> 15) | (checksum << 17)) + CHECKSUM_DELTA) & ALL_BITS


def numpy_crc32c(data: np.ndarray) -> int:
    """The CRC-32C of bytes (N).

    A checksum is linear over XOR: lanes of equal length are computed side by side from state 0, and joined. To go past a lane, each
    bit of the state becomes what as many zero bytes make of it.
    """
    length = len(data) // CHECKSUM_LANES
    num_first = len(data) - length * CHECKSUM_LANES
    state, table = ALL_BITS, byte_table().tolist()
    for byte in data[:num_first].tolist():
        state = (state >> 8) ^ table[(state ^ byte) & 0xFF]
    if length:
        lanes = data[num_first:].reshape(CHECKSUM_LANES, length)
        lane_states = after_bytes(np.zeros(CHECKSUM_LANES, np.uint32), lanes.T)
        bits = after_bytes(1 << np.arange(32, dtype=np.uint32), itertools.repeat(0, length)).tolist()
        for lane_state in lane_states.tolist():
            set_bits = (word for place, word in enumerate(bits) if state >> place & 1)
            state = functools.reduce(operator.xor, set_bits, lane_state)
    return state ^ ALL_BITS


def after_bytes(states: np.ndarray, columns: Iterable[Any]) -> np.ndarray:
    """The states (N) after one byte for each of them from every column (N)."""
    table = byte_table()
    for column in columns:
        states = (states >> 8) ^ table.take((states ^ column) & 0xFF, mode="clip")  # "clip" spares a check
    return states


@functools.cache
def byte_table() -> np.ndarray:
    """What each value of a state's lowest byte contributes to the next state (256)."""
    table: np.ndarray = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))  # Castagnoli's, bits reversed
    return table

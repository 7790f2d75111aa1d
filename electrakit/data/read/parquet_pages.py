"""Finds parquet pages that are too large to read, from their headers alone: a page is unpacked as a whole.

Headers are structs in Thrift's compact protocol. Of a page's, three fields are needed: its kind and its two sizes.
"""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_PAGE_BYTES = 512 * 2**20  # unpacked; a thousand books, which some writers put into one page
MAX_DICTIONARY_BYTES = 256 * 2**20  # of different texts that a column keeps in one place
MAX_PACKED_BYTES = 64 * 2**20  # above it, a page that is packed as no text can be is a bomb
MAX_RATIO = 100  # text is packed 3 to 10 times
USUAL_HEADER_BYTES, MAX_HEADER_BYTES = 2**12, 2**20
MAX_DEPTH = 8
DICTIONARY = 2


class Page(NamedTuple):
    """What the header of a page says."""

    kind: int
    num_unpacked: int
    num_packed: int

    @property
    def is_too_large(self) -> bool:
        limit = MAX_DICTIONARY_BYTES if self.kind == DICTIONARY else MAX_PAGE_BYTES
        is_bomb = self.num_unpacked > MAX_PACKED_BYTES and self.num_unpacked > MAX_RATIO * self.num_packed
        return self.num_unpacked > limit or is_bomb


def largest_refused(file: Any, group: Any, field: str) -> int:
    """Unpacked bytes of the largest page of a row group's column that is too large; 0 if all can be read.

    ValueError if a header is damaged.
    """
    sizes = [0]
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema.split(".")[0] == field:
            sizes += [page.num_unpacked for page in pages_of(file, column) if page.is_too_large]
    return max(sizes)


def pages_of(file: Any, column: Any) -> Iterator[Page]:
    """The pages of a column of one row group."""
    place = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < place:
        place = column.dictionary_page_offset
    end = place + column.total_compressed_size
    while place < end:
        header, fields = read_header(file, place, end - place)
        page = Page(*(fields.get(number, -1) for number in (1, 2, 3)))
        if min(page) < 0:
            raise ValueError(f"no page header at byte {place:,}")
        yield page
        place += header.place + page.num_packed


def read_header(file: Any, place: int, num_left: int) -> tuple["ThriftReader", dict[int, int]]:
    """Its reader, which then stands behind it, and its fields. Nearly all are short; statistics may make them long."""
    for size in (USUAL_HEADER_BYTES, MAX_HEADER_BYTES):
        file.seek(place)
        reader = ThriftReader(file.read(min(size, num_left)))
        try:
            return reader, reader.read_struct()
        except ValueError:
            if size == MAX_HEADER_BYTES:
                raise
    raise AssertionError("unreachable")


class ThriftReader:
    """Thrift's compact protocol. Numbers are kept, all else is only passed over."""

    def __init__(self, content: bytes) -> None:
        self.stream = io.BytesIO(content)

    @property
    def place(self) -> int:
        return self.stream.tell()

    def read_struct(self, depth: int = 0) -> dict[int, int]:
        """The fields that are whole numbers, by their own number."""
        fields: dict[int, int] = {}
        number = 0
        while (head := self.read_byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self.read_number()
            if (value := self.read_value(head & 15, depth)) is not None:
                fields[number] = value
        return fields

    def read_value(self, kind: int, depth: int) -> int | None:
        if depth > MAX_DEPTH:
            raise ValueError("a page header is too deep")
        if kind in (1, 2):  # true and false: in the field's head
            return None
        if kind == 3:
            return self.read_byte()
        if kind in (4, 5, 6):
            return self.read_number()
        if kind == 7:
            self.read_bytes(8)
        elif kind == 8:
            self.read_bytes(self.read_varint())
        elif kind in (9, 10):
            head = self.read_byte()
            num_values = head >> 4 if head >> 4 < 15 else self.read_varint()
            for _ in range(num_values):
                if head & 15 in (1, 2):
                    self.read_byte()
                else:
                    self.read_value(head & 15, depth + 1)
        elif kind == 12:
            self.read_struct(depth + 1)
        else:
            raise ValueError(f"a page header has a field of the unknown kind {kind}")
        return None

    def read_number(self) -> int:
        value = self.read_varint()
        return (value >> 1) ^ -(value & 1)

    def read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")

    def read_byte(self) -> int:
        return self.read_bytes(1)[0]

    def read_bytes(self, count: int) -> bytes:
        found = self.stream.read(min(count, MAX_HEADER_BYTES))
        if len(found) < count:
            raise ValueError("a page header is cut off")
        return found

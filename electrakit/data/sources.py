"""Names in, pieces of raw bytes out: opens files, archives and datasets and cuts them at the ends of documents.

Cutting is cheap and done by one process in a fixed order; all that is slow (decoding, wikitext, JSON) happens in the
workers, see readers.py. Nothing is dropped silently: what cannot be used is counted in `Notes`.
"""

import contextlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from electrakit.config import CorpusConfig
from electrakit.data import docstrings
from electrakit.data.archives import tar_members, zip_members
from electrakit.data.cutting import DOCUMENT_ENDS, chunks, cut_records, cut_text
from electrakit.data.files import (
    TOO_MUCH,
    Allowance,
    Guarded,
    Notes,
    Transcoded,
    buffered,
    ends_too_early,
    find_files,
    in_short,
    opened,
    real_path,
)
from electrakit.data.readers import Document, Part, Piece, identity, read
from electrakit.data.recognise import (
    OPENWEBTEXT_FILE,
    ends_with_a_page,
    hidden_namespaces,
    is_spread,
    is_tar_in_xz,
    is_utf8,
    recognise,
    wrong_suffix,
)
from electrakit.data.tables import dataset_values, parquet_values
from electrakit.engine import Workers
from electrakit.errors import UserError

__all__ = ["Document", "Input", "Notes", "Part", "Piece", "cut", "find_inputs", "identity", "read"]

PIECE_BYTES = 2**20
MAX_DOCUMENT_BYTES = 4 * 2**20  # a longer document is cut into several; they stay in the same split
MAX_RECORD_BYTES = 8 * 2**20  # a JSON line or a page cannot be cut; Wikipedia's longest pages have 2 MB
MAX_LONG_RECORD_BYTES = 64 * 2**20  # but the text of a JSON line can, if this process loads it
MAX_SPREAD_BYTES = 32 * 2**20  # a JSON value over many lines is loaded as a whole
SMALL_ARCHIVE_BYTES = 2 * 2**20  # OpenWebText's have 0.6 MB; a larger one is read here, as a stream
DOCUMENT_WEIGHT = 256  # a document counts for this many bytes at least: rows of short ones are mostly padding
ARCHIVE_WEIGHT = 4  # times its bytes: what comes out of it
MAX_TAIL_BYTES = 2**16  # of a dump, where its end is looked for
MAX_DEPTH = 3  # archives within archives


@dataclass(frozen=True, slots=True)
class Input:
    """One name that the user gave, or one file of a folder."""

    name: str
    path: str | None = None
    num_bytes: int | None = None


def find_inputs(config: CorpusConfig, notes: Notes) -> list[Input]:
    """Every file to read, in a fixed order, each once."""
    inputs: dict[str, Input] = {}
    for name in config.inputs:
        if name == "-" or name.startswith("hf:"):
            inputs[name] = Input(name)
        elif name.startswith("builtin:"):
            if name != "builtin:python":
                raise UserError(f"no builtin corpus {name!r}; there is builtin:python")
            inputs[name] = Input(name, num_bytes=sum(_size(file) or 0 for file in docstrings.python_files()))
        else:
            for path in find_files(name, notes):
                if real_path(path) in inputs:
                    notes.add("file named twice; read once", path)
                else:
                    inputs[real_path(path)] = Input(path, path, _size(Path(path)))
    return list(inputs.values())


def _size(path: Path) -> int | None:
    """None for a pipe, and for a file that is gone by now."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def cut(
    inputs: list[Input], config: CorpusConfig, workers: Workers, start: tuple[int, int] = (0, 0)
) -> Iterator[Piece]:
    """All inputs as pieces, in order. `start` goes on where an earlier piece's `after` says."""
    piece, piece_size = Piece(), 0
    num_bytes_before = sum(one.num_bytes or 0 for one in inputs[: start[0]])
    for index in range(start[0], len(inputs)):
        one = inputs[index]
        reader = _Reader(config, workers)
        num_skipped = start[1] if index == start[0] else 0
        number = -1
        for number, part in enumerate(reader.parts(one)):
            if number < num_skipped:
                reader.notes.clear()  # they were counted the first time
                continue
            piece.parts.append(part)
            piece_size += _weight(part)
            if piece_size >= PIECE_BYTES:
                piece.notes.merge(reader.notes)
                reader.notes.clear()
                piece.after, piece.num_bytes_read = (index, number + 1), num_bytes_before + reader.num_read()
                yield piece
                piece, piece_size = Piece(), 0
        if number == -1 and not reader.notes.counts:
            reader.notes.add("empty file", one.name)
        piece.notes.merge(reader.notes)
        num_bytes_before += reader.num_read() if one.num_bytes is None else one.num_bytes
    if start[0] < len(inputs):
        piece.after, piece.num_bytes_read = (len(inputs), 0), num_bytes_before
        yield piece


def _weight(part: Part) -> int:
    """How much work and memory a part is, in bytes of ordinary text."""
    if not isinstance(part.data, bytes):
        return max(sum(len(text or "") for text in part.data), DOCUMENT_WEIGHT * len(part.data))
    if part.kind == "archive":
        return ARCHIVE_WEIGHT * len(part.data)
    end = _RECORD_ENDS.get(part.kind) or DOCUMENT_ENDS[part.splitting]
    return max(len(part.data), DOCUMENT_WEIGHT * (part.data.count(end) + 1 if end else 1))


class _Reader:
    """Reads one input and cuts it into parts."""

    def __init__(self, config: CorpusConfig, workers: Workers) -> None:
        self.config, self.workers, self.notes = config, workers, Notes()
        self.num_bytes_read: Callable[[], int] | None = None

    def num_read(self) -> int:
        return self.num_bytes_read() if self.num_bytes_read is not None else 0

    def parts(self, one: Input) -> Iterator[Part]:
        if one.name == "builtin:python":
            yield from self._builtin()
        elif one.path is None and one.name.startswith("hf:"):
            yield from self._dataset(one.name)
        else:
            try:
                file = io.FileIO(one.path) if one.path is not None else io.FileIO(_standard_input(), closefd=False)
            except OSError as error:
                self.notes.add(f"cannot be read ({error.strerror})", one.name)
                return
            with file:
                raw = Guarded(file, one.name, self.notes)
                self.num_bytes_read = lambda: min(raw.num_bytes_out, one.num_bytes or raw.num_bytes_out)
                self.allowance = Allowance(lambda: one.num_bytes or raw.num_bytes_out)
                yield from self._file(buffered(raw), one.name)

    def _file(self, raw: io.BufferedReader, name: str, depth: int = 0, is_openwebtext: bool = False) -> Iterator[Part]:
        num_noted = self.notes.counts.total()
        may_be_theirs = self.config.source in (None, "openwebtext") and _OPENWEBTEXT_ARCHIVE.search(name)
        if may_be_theirs and is_tar_in_xz(raw.peek(2**16)):
            is_openwebtext = True
            data = raw.read(SMALL_ARCHIVE_BYTES)
            if len(data) < SMALL_ARCHIVE_BYTES:  # the workers decompress these
                yield Part(name, "archive", data)
                return
            raw = buffered(Guarded(_Joined(data, raw), name, self.notes))
        stream = opened(raw, name, self.notes, self.allowance)
        head = stream.peek(2**16)[: 2**16]
        is_tar, is_zip = head[257:262] == b"ustar", head.startswith(b"PK\x03\x04")
        if not head:
            if self.notes.counts.total() == num_noted:  # else its damage has been noted
                self.notes.add("empty file", name)
        elif (is_tar or is_zip) and depth == MAX_DEPTH:
            self.notes.add(f"archive within {MAX_DEPTH} archives; left out", name)
        elif is_tar:
            for member, content in tar_members(stream, name, self.notes):
                yield from self._file(content, member, depth + 1, is_openwebtext)
        elif is_zip and not _OFFICE_OR_EPUB.match(head[30:]):
            with self._seekable(stream) as file:
                for member, content in zip_members(file, name, self.notes, self.allowance, stream):
                    yield from self._file(content, member, depth + 1)
        else:
            kind = self.config.source or recognise(head, _COMPRESSION.sub("", str(Path(name).absolute())))
            if (suffix := wrong_suffix(name, kind, is_packed=stream is not raw)) is not None:
                self.notes.add(f"named {suffix}, read as {kind}", name)
            if kind is None or is_zip:
                self.notes.add("not text, and no known kind of file; left out", name)
            elif kind == "parquet":
                with self._seekable(stream) as file:
                    yield from self._parquet(file, name)
            else:
                is_openwebtext = is_openwebtext or OPENWEBTEXT_FILE.search(name) is not None
                yield from self._cut_stream(stream, name, "openwebtext" if kind == "text" and is_openwebtext else kind)

    def _cut_stream(self, stream: io.BufferedReader, name: str, kind: str) -> Iterator[Part]:
        head = stream.peek(2**16)
        splitting = "file" if kind in ("gutenberg", "openwebtext") else self.config.documents
        if kind == "wikiextractor" and head.lstrip().startswith((b"{", b"[")):
            kind = "jsonl"  # its other form
        kind = "text" if kind == "openwebtext" else kind
        encoding = self.config.encoding
        if encoding is not None and kind in ("text", "gutenberg") and not is_utf8(head):
            stream = buffered(Transcoded(stream, encoding, name, self.notes))
        namespaces = hidden_namespaces(head) if kind == "wikipedia" else ()
        if kind == "jsonl" and is_spread(head):
            stream = self._with_a_record_on_each_line(stream, name)
        source = chunks(stream, MAX_DOCUMENT_BYTES if splitting == "file" else PIECE_BYTES)
        if kind in _RECORD_ENDS:
            max_bytes = MAX_LONG_RECORD_BYTES if kind == "jsonl" else MAX_RECORD_BYTES
            slices = cut_records(source, _RECORD_ENDS[kind], max_bytes)
        else:
            slices = cut_text(source, splitting, MAX_DOCUMENT_BYTES)
        seems_utf8, last_key, tail = False, None, b""
        for data, line, key, is_too_long in slices:
            tail = data[-MAX_TAIL_BYTES:]
            if is_too_long:
                self.notes.add(f"record longer than {max_bytes:,} bytes; left out", f"{name}:{line}")
                continue
            if kind == "jsonl" and len(data) > MAX_RECORD_BYTES:
                yield from self._long_records(data, name, line)
                continue
            doctype = _DOCTYPE.search(data) if kind == "wikipedia" else None
            if doctype is not None:
                num_lines = data.count(b"\n", 0, doctype.start())
                self.notes.add("XML with a DOCTYPE; refused from there on", f"{name}:{line + num_lines}")
                data, end, _ = data[: doctype.start()].rpartition(_RECORD_ENDS[kind])
                data += end
            if key not in (None, last_key):
                self.notes.add(f"document longer than {MAX_DOCUMENT_BYTES:,} bytes; cut into several", f"{name}:{line}")
            last_key = key
            seems_utf8 = seems_utf8 or is_utf8(data)
            if data:
                yield Part(name, kind, data, line, splitting, key, seems_utf8, namespaces)
            if doctype is not None:
                return
        if kind == "wikipedia" and b"<mediawiki" in head and ends_with_a_page(tail) and not ends_too_early(stream):
            last_line = line + data.rstrip().count(b"\n")
            self.notes.add("dump without an end; cut off?", f"{name}:{last_line}")

    def _long_records(self, data: bytes, name: str, first_line: int) -> Iterator[Part]:
        """JSON lines of which at least one is so long that its text is cut here, before a worker sees it."""
        for number, line in enumerate(io.BytesIO(data), first_line):
            if len(line) <= MAX_RECORD_BYTES:
                yield Part(name, "jsonl", line, number, is_utf8=is_utf8(line))
                continue
            try:
                loaded = json.loads(line.decode("utf-8", "surrogateescape").strip().rstrip(","))
                records = loaded if isinstance(loaded, list) else [loaded]
                texts = [record[self.config.field].encode("utf-8", "surrogatepass") for record in records]
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
                self.notes.add(
                    f"record longer than {MAX_RECORD_BYTES:,} bytes and not as it should be; left out",
                    f"{name}:{number}",
                )
                continue
            del loaded, records
            for text in texts:
                yield from self._long_text(memoryview(text), name, number)

    def _with_a_record_on_each_line(self, stream: io.BufferedReader, name: str) -> io.BufferedReader:
        """One JSON value over many lines, an object or a list of them, as JSON lines; what is none stays as it is."""
        data = stream.read(MAX_SPREAD_BYTES)
        if len(data) < MAX_SPREAD_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                loaded = json.loads(data)
                data = "\n".join(map(json.dumps, loaded if isinstance(loaded, list) else [loaded])).encode()
        return buffered(Guarded(_Joined(data, stream), name, self.notes))

    @contextlib.contextmanager
    def _seekable(self, stream: io.BufferedReader) -> Iterator[Any]:
        """The stream itself where it can be jumped about in (a plain file), else a temporary copy without a name."""
        if stream.seekable():
            stream.seek(0)
            yield stream
            return
        with tempfile.SpooledTemporaryFile(max_size=MAX_RECORD_BYTES) as copy:
            shutil.copyfileobj(stream, copy, 2**20)
            copy.seek(0)
            yield copy

    def _parquet(self, file: Any, name: str) -> Iterator[Part]:
        values = parquet_values(file, name, self.config.field, MAX_DOCUMENT_BYTES, self.notes)
        yield from self._texts(self._within_allowance(values, name), name)

    def _within_allowance(self, values: Iterable[Any], name: str) -> Iterator[Any]:
        for value in values:
            if isinstance(value, str | memoryview) and self.allowance.is_used_up(len(value)):
                self.notes.add(TOO_MUCH, name)
                return
            yield value

    def _dataset(self, name: str) -> Iterator[Part]:
        try:
            yield from self._texts(dataset_values(name.removeprefix("hf:"), self.config.field), name)
        except UserError:
            raise
        except Exception as error:  # the library raises many kinds, for a wrong name, damage and no network alike
            raise UserError(f"cannot read the dataset {name!r}: {in_short(error)}") from None

    def _texts(self, values: Iterable[Any], name: str) -> Iterator[Part]:
        """Values that a library has read, one after the other, as parts."""
        texts: list[str | None] = []
        num_characters, num_read, row, number = 0, 0, 1, 0
        self.num_bytes_read = self.num_bytes_read or (lambda: num_read)
        for value in values:
            number += 1
            num_read += len(value) if isinstance(value, str) else 0
            if isinstance(value, memoryview) or (isinstance(value, str) and len(value) > MAX_DOCUMENT_BYTES // 4):
                if texts:
                    yield Part(name, "texts", texts, row)
                yield from self._long_text(value, name, number)
                texts, num_characters, row, value = [], 0, number + 1, None  # so that there are never two
                continue
            texts.append(value if isinstance(value, str) else None)
            num_characters += len(texts[-1] or "")
            if num_characters >= PIECE_BYTES or len(texts) == 4096:
                yield Part(name, "texts", texts, row)
                texts, num_characters, row = [], 0, number + 1
        if texts:
            yield Part(name, "texts", texts, row)

    def _long_text(self, text: str | memoryview, name: str, row: int) -> Iterator[Part]:
        """A text that may be too long for one document, cut as plain text is."""
        chunks = (text[start : start + PIECE_BYTES] for start in range(0, len(text), PIECE_BYTES))
        source = (
            chunk.encode("utf-8", "surrogatepass") if isinstance(chunk, str) else bytes(chunk) for chunk in chunks
        )
        last_key = None
        for data, _, key, _ in cut_text(source, "file", MAX_DOCUMENT_BYTES):
            if key not in (None, last_key):
                self.notes.add(f"document longer than {MAX_DOCUMENT_BYTES:,} bytes; cut into several", f"{name}:{row}")
            last_key = key
            yield Part(name, "texts", [data.decode("utf-8", "surrogateescape")], row, key=key)

    def _builtin(self) -> Iterator[Part]:
        """The prose inside this Python installation: a document is a source file, its lines are paragraphs, each once."""
        files = docstrings.python_files()
        seen: set[int] = set()
        num_bytes_read = 0
        self.num_bytes_read = lambda: num_bytes_read
        for file, paragraphs in zip(files, self.workers.map(_docstrings_of, files), strict=True):
            num_bytes_read += _size(file) or 0
            new = []
            for paragraph in paragraphs:
                digest = xxhash.xxh3_64_intdigest(paragraph.encode())
                if digest not in seen:
                    seen.add(digest)
                    new.append(paragraph)
            if new:
                yield Part(str(file), "texts", ["\n".join(new)])


class _Joined:
    """What has been read already, and the rest of the stream."""

    def __init__(self, start: bytes, rest: io.BufferedReader) -> None:
        self.start, self.rest = io.BytesIO(start), rest

    def read(self, size: int) -> bytes:
        return self.start.read(size) or self.rest.read(size)


def _standard_input() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        raise UserError("there is no standard input to read; name a file instead of -") from None


def _docstrings_of(file: Path) -> list[str]:
    try:
        return docstrings.paragraphs(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []


_RECORD_ENDS = {"jsonl": b"\n", "wikipedia": b"</page>", "wikiextractor": b"</doc>"}
_COMPRESSION = re.compile(r"\.(gz|xz|bz2|zst)$", re.I)
_OFFICE_OR_EPUB = re.compile(rb"mimetype|\[Content_Types\]|_rels/")  # zip archives of markup, not of text
_OPENWEBTEXT_ARCHIVE = re.compile(r"_data\.xz$", re.I)
_DOCTYPE = re.compile(rb"<!(?:DOCTYPE|ENTITY)", re.I)

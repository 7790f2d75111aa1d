"""Finds the inputs of a corpus, opens files, archives and datasets, and cuts them into batches of raw chunks for the workers.

Cutting is cheap and done by one process in a fixed order; all that is slow (decoding, wikitext, JSON) happens in the
workers, see formats.py. Nothing is dropped silently: what cannot be used is counted in `Notes`.
"""

import contextlib
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electrakit.common.errors import UserError, first_line
from electrakit.common.workers import WorkerPool
from electrakit.config.corpus import CorpusConfig
from electrakit.data.read import docstrings, recognise
from electrakit.data.read.archives import tar_members, zip_members
from electrakit.data.read.cut import DOCUMENT_ENDS, cut_records, cut_text, read_blocks
from electrakit.data.read.files import (
    Allowance,
    Guarded,
    Joined,
    Transcoded,
    buffered,
    ends_too_early,
    find_files,
    opened,
    real_path,
)
from electrakit.data.read.formats import Chunk, ChunkBatch
from electrakit.data.read.notes import Notes
from electrakit.data.read.parquet import dataset_values, parquet_values

BATCH_BYTES = 2**20  # of text in one batch
MAX_DOCUMENT_BYTES = 4 * 2**20  # a longer document is cut into sections, which stay in the same split
MAX_RECORD_BYTES = 8 * 2**20  # a JSON line or a page cannot be cut; Wikipedia's longest pages have 2 MB
MAX_LONG_RECORD_BYTES = 64 * 2**20  # but the text of a JSON line can, if this process loads it
MAX_SPREAD_BYTES = 32 * 2**20  # a JSON value over many lines is loaded as a whole
SMALL_ARCHIVE_BYTES = 2 * 2**20  # OpenWebText's have 0.6 MB; a larger one is read here, as a stream
DOCUMENT_WEIGHT = 256  # a document counts for this many bytes at least: rows of short ones are mostly padding
ARCHIVE_WEIGHT = 4  # times its bytes: what comes out of it
MAX_TAIL_BYTES = 2**16  # of a dump, where its end is looked for
MAX_ARCHIVE_DEPTH = 3  # archives within archives


@dataclass(frozen=True, slots=True)
class CorpusInput:
    """One name that the user gave, or one file of a folder."""

    name: str
    path: str | None = None
    num_bytes: int | None = None


def find_inputs(config: CorpusConfig, notes: Notes) -> list[CorpusInput]:
    """Every file to read, in a fixed order, each once."""
    inputs: dict[str, CorpusInput] = {}
    for name in config.inputs:
        if name == "-" or name.startswith("hf:"):
            inputs[name] = CorpusInput(name)
        elif name.startswith("builtin:"):
            if name != "builtin:python":
                raise UserError(f"no builtin corpus {name!r}; there is builtin:python")
            inputs[name] = CorpusInput(name, num_bytes=sum(_size(file) or 0 for file in docstrings.python_files()))
        else:
            for path in find_files(name, notes):
                if real_path(path) in inputs:
                    notes.add("file named twice; read once", path)
                else:
                    inputs[real_path(path)] = CorpusInput(path, path, _size(Path(path)))
    return list(inputs.values())


def _size(path: Path) -> int | None:
    """None for a pipe, and for a file that is gone by now."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def cut_inputs(
    inputs: list[CorpusInput], config: CorpusConfig, workers: WorkerPool, start: tuple[int, int] = (0, 0)
) -> Iterator[ChunkBatch]:
    """All inputs in batches, in order. `start` is the `next_position` of an earlier batch."""
    batch, batch_size = ChunkBatch(), 0
    num_bytes_before = sum(one.num_bytes or 0 for one in inputs[: start[0]])
    for index in range(start[0], len(inputs)):
        one = inputs[index]
        reader = _Reader(config, workers)
        num_skipped = start[1] if index == start[0] else 0
        number = -1
        for number, chunk in enumerate(reader.chunks(one)):
            if number < num_skipped:
                reader.notes.clear()  # they were counted the first time
                continue
            batch.chunks.append(chunk)
            batch_size += _weight(chunk)
            if batch_size >= BATCH_BYTES:
                batch.notes.merge(reader.notes)
                reader.notes.clear()
                num_read = min(reader.num_read(), one.num_bytes or sys.maxsize)  # a part may be read twice
                batch.next_position, batch.num_bytes_read = (index, number + 1), num_bytes_before + num_read
                yield batch
                batch, batch_size = ChunkBatch(), 0
        if number == -1 and not reader.notes.total:
            reader.notes.add("empty file", one.name)
        batch.notes.merge(reader.notes)
        num_bytes_before += reader.num_read() if one.num_bytes is None else one.num_bytes
    if start[0] < len(inputs):
        batch.next_position, batch.num_bytes_read = (len(inputs), 0), num_bytes_before
        yield batch


def _weight(chunk: Chunk) -> int:
    """How much work and memory a chunk takes, in bytes of ordinary text."""
    if not isinstance(chunk.data, bytes):
        return max(sum(len(text or "") for text in chunk.data), DOCUMENT_WEIGHT * len(chunk.data))
    if chunk.kind == "archive":
        return ARCHIVE_WEIGHT * len(chunk.data)
    end = _RECORD_ENDS.get(chunk.kind) or DOCUMENT_ENDS[chunk.splitting]
    return max(len(chunk.data), DOCUMENT_WEIGHT * (chunk.data.count(end) + 1 if end else 1))


class _Reader:
    """Reads one input and cuts it into chunks."""

    def __init__(self, config: CorpusConfig, workers: WorkerPool) -> None:
        self.config, self.workers, self.notes = config, workers, Notes()
        self.raw: Guarded | None = None
        self.num_counted = 0  # bytes or characters, of what is not one file

    def num_read(self) -> int:
        return self.num_counted if self.raw is None else self.raw.num_bytes_out

    def chunks(self, one: CorpusInput) -> Iterator[Chunk]:
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
                self.raw = Guarded(file, one.name, self.notes)
                self.allowance = Allowance(lambda: one.num_bytes or self.num_read())
                yield from self._file(buffered(self.raw), one.name)

    def _file(self, raw: io.BufferedReader, name: str, depth: int = 0, is_openwebtext: bool = False) -> Iterator[Chunk]:
        num_noted = self.notes.total
        may_be_theirs = self.config.source in (None, "openwebtext") and _OPENWEBTEXT_ARCHIVE.search(name)
        if may_be_theirs and recognise.is_tar_in_xz(raw.peek(2**16)):
            is_openwebtext = True
            data = raw.read(SMALL_ARCHIVE_BYTES)
            if len(data) < SMALL_ARCHIVE_BYTES:  # the workers decompress these
                yield Chunk(name, "archive", data)
                return
            raw = buffered(Joined(data, raw))
        stream = opened(raw, name, self.notes, self.allowance)
        head = stream.peek(2**16)[: 2**16]
        is_tar, is_zip = head[257:262] == b"ustar", head.startswith(b"PK\x03\x04")
        if not head:
            if self.notes.total == num_noted:  # else its damage has been noted
                self.notes.add("empty file", name)
        elif (is_tar or is_zip) and depth == MAX_ARCHIVE_DEPTH:
            self.notes.add(f"archive within {MAX_ARCHIVE_DEPTH} archives; left out", name)
        elif is_tar:
            for member, content in tar_members(stream, name, self.notes):
                yield from self._file(content, member, depth + 1, is_openwebtext)
        elif is_zip and not _OFFICE_OR_EPUB.match(head[30:]):
            with _seekable(stream) as file:
                for member, content in zip_members(file, name, self.notes, self.allowance, stream):
                    yield from self._file(content, member, depth + 1)
        else:
            kind = self.config.source or recognise.kind_of(head, _COMPRESSION.sub("", str(Path(name).absolute())))
            if (suffix := recognise.wrong_suffix(name, kind, is_packed=stream is not raw)) is not None:
                self.notes.add(f"named {suffix}, read as {kind}", name)
            if kind is None or is_zip:
                self.notes.add("not text, and no known kind of file; left out", name)
            elif kind == "parquet":
                with _seekable(stream) as file:
                    values = parquet_values(
                        file, name, self.config.field, MAX_DOCUMENT_BYTES, self.notes, self.allowance
                    )
                    yield from self._texts(values, name)
            else:
                is_openwebtext = is_openwebtext or recognise.OPENWEBTEXT_FILE.search(name) is not None
                yield from self._cut_stream(stream, name, "openwebtext" if kind == "text" and is_openwebtext else kind)

    def _cut_stream(self, stream: io.BufferedReader, name: str, kind: str) -> Iterator[Chunk]:
        head = stream.peek(2**16)
        splitting = "file" if kind in ("gutenberg", "openwebtext") else self.config.documents
        if kind == "wikiextractor" and head.lstrip().startswith((b"{", b"[")):
            kind = "jsonl"  # its other form
        kind = "text" if kind == "openwebtext" else kind
        encoding = self.config.encoding
        if encoding is not None and kind in ("text", "gutenberg") and not recognise.is_utf8(head):
            stream = buffered(Transcoded(stream, encoding, name, self.notes))
        namespaces = recognise.hidden_namespaces(head) if kind == "wikipedia" else ()
        if kind == "jsonl" and recognise.is_spread(head):
            stream = _with_a_record_on_each_line(stream)
        blocks = read_blocks(stream, MAX_DOCUMENT_BYTES if splitting == "file" else BATCH_BYTES)
        if kind in _RECORD_ENDS:
            max_bytes = MAX_LONG_RECORD_BYTES if kind == "jsonl" else MAX_RECORD_BYTES
            runs = cut_records(blocks, _RECORD_ENDS[kind], max_bytes)
        else:
            runs = cut_text(blocks, splitting, MAX_DOCUMENT_BYTES)
        seems_utf8, tail = False, b""
        for data, line, key, is_first_section, is_too_long in runs:
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
            if is_first_section:
                self.notes.add(f"document longer than {MAX_DOCUMENT_BYTES:,} bytes; cut into several", f"{name}:{line}")
            seems_utf8 = seems_utf8 or recognise.is_utf8(data)
            if data:
                yield Chunk(name, kind, data, line, splitting, key, seems_utf8, namespaces)
            if doctype is not None:
                return
        if (
            kind == "wikipedia"
            and b"<mediawiki" in head
            and recognise.ends_with_a_page(tail)
            and not ends_too_early(stream)
        ):
            last_line = line + data.rstrip().count(b"\n")
            self.notes.add("dump without an end; cut off?", f"{name}:{last_line}")

    def _long_records(self, data: bytes, name: str, first_line: int) -> Iterator[Chunk]:
        """JSON lines of which at least one is so long that its text is cut here, before a worker sees it."""
        for number, line in enumerate(io.BytesIO(data), first_line):
            if len(line) <= MAX_RECORD_BYTES:
                yield Chunk(name, "jsonl", line, number, is_utf8=recognise.is_utf8(line))
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

    def _dataset(self, name: str) -> Iterator[Chunk]:
        try:
            yield from self._texts(dataset_values(name.removeprefix("hf:"), self.config.field), name)
        except UserError:
            raise
        except Exception as error:  # the library raises many kinds, for a wrong name, damage and no network alike
            raise UserError(f"cannot read the dataset {name!r}: {first_line(error, 80)}") from None

    def _texts(self, values: Iterable[Any], name: str) -> Iterator[Chunk]:
        """Values that a library has read, one after the other, as chunks."""
        texts: list[str | None] = []
        num_characters = number = 0
        for value in values:
            number += 1  # not by enumerate, which keeps the value
            is_text = isinstance(value, str)
            self.num_counted += len(value) if is_text else 0
            is_long = isinstance(value, memoryview) or (is_text and len(value) > MAX_DOCUMENT_BYTES // 4)
            if texts and (is_long or num_characters >= BATCH_BYTES or len(texts) == 4096):
                yield Chunk(name, "texts", texts, number - len(texts))
                texts, num_characters = [], 0
            if is_long:
                yield from self._long_text(value, name, number)
                value = None  # so that there are never two
            else:
                texts.append(value if is_text else None)
                num_characters += len(value) if is_text else 0
        if texts:
            yield Chunk(name, "texts", texts, number + 1 - len(texts))

    def _long_text(self, text: str | memoryview, name: str, row: int) -> Iterator[Chunk]:
        """A text that may be too long for one document, cut as plain text is."""
        slices = (text[start : start + BATCH_BYTES] for start in range(0, len(text), BATCH_BYTES))
        blocks = (one.encode("utf-8", "surrogatepass") if isinstance(one, str) else bytes(one) for one in slices)
        for section in cut_text(blocks, "file", MAX_DOCUMENT_BYTES):
            if section.is_first_section:
                self.notes.add(f"document longer than {MAX_DOCUMENT_BYTES:,} bytes; cut into several", f"{name}:{row}")
            yield Chunk(name, "texts", [section.data.decode("utf-8", "surrogateescape")], row, key=section.key)

    def _builtin(self) -> Iterator[Chunk]:
        """The prose inside this Python installation: a document is a source file, its lines are paragraphs, each once."""
        files = docstrings.python_files()
        documents = docstrings.without_repeats(self.workers.map(docstrings.paragraphs_of_file, files))
        for file, paragraphs in zip(files, documents, strict=True):
            self.num_counted += _size(file) or 0
            if paragraphs:
                yield Chunk(str(file), "texts", ["\n".join(paragraphs)])


def _with_a_record_on_each_line(stream: io.BufferedReader) -> io.BufferedReader:
    """One JSON value over many lines, an object or a list of them, as JSON lines; what is none stays as it is."""
    data = stream.read(MAX_SPREAD_BYTES)
    if len(data) < MAX_SPREAD_BYTES:
        with contextlib.suppress(ValueError, RecursionError):
            loaded = json.loads(data)
            data = "\n".join(map(json.dumps, loaded if isinstance(loaded, list) else [loaded])).encode()
    return buffered(Joined(data, stream))


@contextlib.contextmanager
def _seekable(stream: io.BufferedReader) -> Iterator[Any]:
    """The stream itself where it can be jumped about in (a plain file), else a temporary copy without a name."""
    if stream.seekable():
        stream.seek(0)
        yield stream
        return
    with tempfile.SpooledTemporaryFile(max_size=MAX_RECORD_BYTES) as copy:
        shutil.copyfileobj(stream, copy, 2**20)
        copy.seek(0)
        yield copy


def _standard_input() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        raise UserError("there is no standard input to read; name a file instead of -") from None


_RECORD_ENDS = {"jsonl": b"\n", "wikipedia": b"</page>", "wikiextractor": b"</doc>"}
_COMPRESSION = re.compile(r"\.(gz|xz|bz2|zst)$", re.I)
_OFFICE_OR_EPUB = re.compile(rb"mimetype|\[Content_Types\]|_rels/")  # zip archives of markup, not of text
_OPENWEBTEXT_ARCHIVE = re.compile(r"_data\.xz$", re.I)
_DOCTYPE = re.compile(rb"<!(?:DOCTYPE|ENTITY)", re.I)

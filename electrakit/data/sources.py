"""Files of any kind in, documents out: the reader cuts files into pieces of raw bytes, the workers turn a piece into documents.

Cutting is cheap and done by one process in a fixed order; all that is slow (decoding, wikitext, JSON) happens in the
workers. A document is a list of lines. Nothing is dropped silently: what cannot be used is counted in `Notes`.
"""

import functools
import html
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from xml.etree import ElementTree

import xxhash

from electrakit.config import CorpusConfig, Splitting
from electrakit.data import docstrings
from electrakit.data.files import Notes, buffered, find_files, opened, tar_members, zip_members
from electrakit.engine import Workers
from electrakit.errors import UserError

PIECE_BYTES = 2**20
MAX_DOCUMENT_BYTES = 16 * 2**20  # a longer document is cut into several; they stay in the same split
MAX_RECORD_BYTES = 64 * 2**20  # a JSON line, a page or a small archive: these cannot be cut
MAX_LINE_CHARACTERS = 2**16


class Document(NamedTuple):
    lines: list[str]
    key: int | None = None  # identity of the whole document, if this is only a part of it


class Part(NamedTuple):
    """Some bytes of one file that can be read on their own."""

    name: str
    kind: str
    data: bytes | list[str]  # raw bytes, or documents where a library has already parsed them
    first_line: int = 1
    splitting: Splitting = "blank"
    key: int | None = None  # the first document is a part of a longer one with this identity


@dataclass
class Piece:
    """A load for one worker: parts of about a megabyte together."""

    parts: list[Part] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)
    after: tuple[int, int] = (0, 0)  # where the next piece starts: input, and part of that input
    num_bytes_read: int = 0  # of all inputs so far, for the progress bar


@dataclass(frozen=True)
class Input:
    """One name that the user gave, or one file of a folder."""

    name: str
    path: Path | None = None
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
            inputs[name] = Input(name, num_bytes=sum(file.stat().st_size for file in docstrings.python_files()))
        else:
            for path in find_files(name, notes):
                if str(path) in inputs:
                    notes.add("file named twice; read once", str(path))
                inputs[str(path)] = Input(str(path), path, path.stat().st_size)
    return list(inputs.values())


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
                reader.notes = Notes()  # they were counted the first time
                continue
            piece.parts.append(part)
            piece_size += len(part.data) if isinstance(part.data, bytes) else sum(map(len, part.data))
            if piece_size >= PIECE_BYTES:
                piece.notes.merge(reader.notes)
                reader.notes = Notes()
                piece.after, piece.num_bytes_read = (index, number + 1), num_bytes_before + reader.num_bytes_read()
                yield piece
                piece, piece_size = Piece(), 0
        if number == -1 and not reader.notes.counts:
            reader.notes.add("empty file", one.name)
        piece.notes.merge(reader.notes)
        num_bytes_before += one.num_bytes or 0
    piece.after, piece.num_bytes_read = (len(inputs), 0), num_bytes_before
    yield piece


def read(piece: Piece, config: CorpusConfig) -> tuple[list[Document], Notes]:
    """A piece's documents, and what was met on the way."""
    notes = piece.notes
    documents = []
    for part in piece.parts:
        for document in _READERS[part.kind](part, notes, config):
            lines = [short for line in document.lines for short in _short_lines(line, part, notes)]
            if not lines:
                continue
            if config.min_words and sum(len(line.split()) for line in lines) < config.min_words:
                notes.add(f"document of fewer than {config.min_words} words", _place(part))
                continue
            documents.append(Document(lines, document.key))
    return documents, notes


def identity(document: Document) -> int:
    """64 bits that stand for a document's content: the same content gives the same bits everywhere."""
    return (
        document.key
        if document.key is not None
        else xxhash.xxh3_64_intdigest("\n".join(document.lines).encode("utf-8", "replace"))
    )


# --- from inputs to parts, in the main process ---------------------------------------------------------------------


class _Reader:
    """Reads one input and cuts it into parts."""

    def __init__(self, config: CorpusConfig, workers: Workers) -> None:
        self.config, self.workers, self.notes = config, workers, Notes()
        self.num_bytes_read: Callable[[], int] = lambda: 0

    def parts(self, one: Input) -> Iterator[Part]:
        if one.name == "builtin:python":
            yield from self._builtin()
        elif one.name.startswith("hf:"):
            yield from self._dataset(one.name.removeprefix("hf:"))
        elif one.path is None:
            yield from self._file(buffered(io.FileIO(sys.stdin.fileno(), closefd=False)), "-")
        else:
            try:
                file = io.FileIO(one.path)
            except OSError as error:
                self.notes.add(f"cannot be read ({error.strerror})", one.name)
                return
            with file:
                self.num_bytes_read = lambda: file.tell() if file.seekable() and not file.closed else 0
                yield from self._file(buffered(file), one.name)

    def _file(self, raw: io.BufferedReader, name: str, depth: int = 0) -> Iterator[Part]:
        plain_name = _without_compression(name)
        if raw.peek(6).startswith(b"\xfd7zXZ") and _OPENWEBTEXT_ARCHIVE.search(name):
            yield from self._whole_archive(raw, name)
            return
        num_noted = self.notes.counts.total()
        stream = opened(raw, name, self.notes)
        head = stream.peek(2**16)[: 2**16]
        if not head:
            if self.notes.counts.total() == num_noted:  # else its damage has been noted
                self.notes.add("empty file", name)
        elif head[257:262] == b"ustar" and depth < 2:
            for member, content in tar_members(stream, name, self.notes):
                yield from self._file(content, member, depth + 1)
        elif head.startswith(b"PK\x03\x04") and depth < 2:
            with self._seekable(stream) as file:
                for member, content in zip_members(file, name, self.notes):
                    yield from self._file(content, member, depth + 1)
        else:
            kind = self.config.source or recognise(head, plain_name)
            if kind is None:
                self.notes.add("not text, and no known kind of file; left out", name)
            elif kind == "parquet":
                with self._seekable(stream) as file:
                    yield from self._parquet(file, name)
            elif b"<!DOCTYPE" in head and kind == "wikipedia":
                self.notes.add("XML with a DOCTYPE; refused", name)
            else:
                yield from self._cut_stream(stream, name, kind)

    def _cut_stream(self, stream: io.BufferedReader, name: str, kind: str) -> Iterator[Part]:
        """Cut at the ends of documents, into parts of about PIECE_BYTES."""
        splitting = self.config.documents
        if kind in ("gutenberg", "openwebtext") or _OPENWEBTEXT_FILE.search(name):
            splitting = "file"
        if kind == "openwebtext":
            kind = "text"
        can_be_cut = kind in ("text", "gutenberg")
        find_end = _ENDS[f"text by {splitting}" if can_be_cut else kind]
        buffer, line, key = b"", 1, None
        is_skipping = False
        while chunk := stream.read(PIECE_BYTES):
            buffer += chunk
            if is_skipping:  # the rest of a record that is too long
                end = find_end(buffer)
                buffer, is_skipping = (buffer[end:], False) if end else (b"", True)
                continue
            end = find_end(buffer)
            if end:
                yield Part(name, kind, buffer[:end], line, splitting, key)
                key = None
            elif can_be_cut and len(buffer) >= MAX_DOCUMENT_BYTES:
                if key is None:
                    key = xxhash.xxh3_64_intdigest(buffer)
                    self.notes.add(
                        f"document longer than {MAX_DOCUMENT_BYTES >> 20} MB; cut into several", f"{name}:{line}"
                    )
                end = _last_break(buffer)
                yield Part(name, kind, buffer[:end], line, splitting, key)
            elif len(buffer) >= MAX_RECORD_BYTES:
                self.notes.add(f"record longer than {MAX_RECORD_BYTES >> 20} MB; left out", f"{name}:{line}")
                end, is_skipping = len(buffer), True
            line += buffer.count(b"\n", 0, end)
            buffer = buffer[end:]
        if buffer:
            yield Part(name, kind, buffer, line, splitting, key)

    def _whole_archive(self, raw: io.BufferedReader, name: str) -> Iterator[Part]:
        """A small archive, as OpenWebText has thousands of: handed to a worker as it is, which decompresses it."""
        data = raw.read(MAX_RECORD_BYTES + 1)
        if len(data) > MAX_RECORD_BYTES:
            self.notes.add(f"record longer than {MAX_RECORD_BYTES >> 20} MB; left out", name)
        else:
            yield Part(name, "archive", data)

    def _seekable(self, stream: io.BufferedReader) -> Any:
        """The stream itself where it can be jumped about in (a plain file), else a temporary copy."""
        if stream.seekable():
            stream.seek(0)
            return stream
        spool = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
        while chunk := stream.read(2**20):
            spool.write(chunk)
        spool.seek(0)
        return spool

    def _parquet(self, file: Any, name: str) -> Iterator[Part]:
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(file)
            if self.config.field not in table.schema_arrow.names:
                self.notes.add(f"no column {self.config.field!r}; left out", f"{name} has {table.schema_arrow.names}")
                return
            row = 1
            for batch in table.iter_batches(batch_size=256, columns=[self.config.field]):
                values = batch.column(0).to_pylist()
                yield Part(name, "documents", self._strings(values, name, row), row)
                row += len(values)
        except (pyarrow.ArrowException, OSError) as error:
            self.notes.add("damaged parquet file; what came before is kept", f"{name} ({str(error)[:80]})")

    def _dataset(self, name: str) -> Iterator[Part]:
        try:
            import datasets
        except ImportError:
            raise UserError(f"hf:{name} needs the datasets library; pip install 'electrakit[hf]'") from None
        try:
            if (Path(name) / "state.json").exists() or (Path(name) / "dataset_dict.json").exists():
                loaded = datasets.load_from_disk(name)
                rows = loaded["train"] if isinstance(loaded, dict) else loaded
            else:
                path, _, variant = name.partition(":")
                rows = datasets.load_dataset(path, variant or None, split="train", streaming=True)
        except Exception as error:  # the library raises many kinds, for a wrong name and for no network alike
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise UserError(f"cannot open the dataset {name!r}: {reason}") from None
        values: list[Any] = []
        first_row = 1
        for row in rows:
            if self.config.field not in row:
                raise UserError(
                    f"the dataset {name!r} has no field {self.config.field!r} but {sorted(row)}; use --field"
                )
            values.append(row[self.config.field])
            if len(values) == 256:
                yield Part(f"hf:{name}", "documents", self._strings(values, name, first_row), first_row)
                first_row += len(values)
                values = []
        if values:
            yield Part(f"hf:{name}", "documents", self._strings(values, name, first_row), first_row)

    def _strings(self, values: list[Any], name: str, first_row: int) -> list[str]:
        for number, value in enumerate(values):
            if not isinstance(value, str):
                self.notes.add(f"field {self.config.field!r} is not text; left out", f"{name}:{first_row + number}")
        return [value for value in values if isinstance(value, str)]

    def _builtin(self) -> Iterator[Part]:
        """The prose inside this Python installation: a document is a source file, its lines are paragraphs, each once."""
        files = docstrings.python_files()
        seen: set[int] = set()
        num_bytes_read = 0
        self.num_bytes_read = lambda: num_bytes_read
        for file, paragraphs in zip(files, self.workers.map(_docstrings_of, files), strict=True):
            num_bytes_read += file.stat().st_size
            new = []
            for paragraph in paragraphs:
                digest = xxhash.xxh3_64_intdigest(paragraph.encode())
                if digest not in seen:
                    seen.add(digest)
                    new.append(paragraph)
            if new:
                yield Part(str(file), "documents", ["\n".join(new)])


def _docstrings_of(file: Path) -> list[str]:
    try:
        return docstrings.paragraphs(file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []


def recognise(head: bytes, name: str) -> str | None:
    """What kind of file begins with these bytes; None if it is not text."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"PAR1"):
        return "parquet"
    if b"<mediawiki" in start[:4096] or start.startswith(b"<page>"):
        return "wikipedia"
    if start.startswith(b"<doc "):
        return "wikiextractor"
    if PurePosixPath(name).suffix.lower() in (".jsonl", ".ndjson", ".json") or _is_json_object(start):
        return "jsonl"
    num_control = len(head) - len(head.translate(None, _CONTROL_BYTES))
    if num_control > len(head) / 10 or start.startswith((b"%PDF-", b"{\\rtf", b"\x89PNG", b"\x7fELF")):
        return None
    if _GUTENBERG_START.search(head.decode("latin-1")) or "___" in PurePosixPath(name).name:
        return "gutenberg"
    return "text"


def _is_json_object(start: bytes) -> bool:
    if not start.startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(start.partition(b"\n")[0]), dict)
    except ValueError:
        return False


def _without_compression(name: str) -> str:
    return re.sub(r"\.(gz|xz|bz2|zst)$", "", name)


def _last_break(buffer: bytes) -> int:
    """Where a document that is too long is cut: after a line, else after a word, else between two characters."""
    end = max(buffer.rfind(b"\n"), buffer.rfind(b" ") if b"\n" not in buffer else -1) + 1
    if not end:
        end = len(buffer)
        while end > 1 and buffer[end - 1] & 0xC0 == 0x80:  # inside a UTF-8 sequence
            end -= 1
        end = end - 1 or len(buffer)
    return end


def _last_blank_line(buffer: bytes) -> int:
    end = max(buffer.rfind(b"\n\n") + 2, buffer.rfind(b"\n\r\n") + 3)
    if end > 2:
        return end
    if len(buffer) >= MAX_DOCUMENT_BYTES:  # look again, slowly, before it is cut by force
        return max((match.end() for match in re.finditer(rb"\n[ \t\r\f\v]*\n", buffer)), default=0)
    return 0


def _last_of(mark: bytes, buffer: bytes) -> int:
    position = buffer.rfind(mark)
    return position + len(mark) if position >= 0 else 0


_ENDS: dict[
    str, Callable[[bytes], int]
] = {  # kind -> the end of the last whole document in a buffer, 0 if there is none
    "text by blank": _last_blank_line,
    "text by line": functools.partial(_last_of, b"\n"),
    "text by file": lambda buffer: 0,
    "jsonl": functools.partial(_last_of, b"\n"),
    "wikipedia": functools.partial(_last_of, b"</page>"),
    "wikiextractor": functools.partial(_last_of, b"</doc>"),
}

_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\x1b"))
_OPENWEBTEXT_ARCHIVE = re.compile(r"urlsf_subset\d+-\d+_data\.xz$")
_OPENWEBTEXT_FILE = re.compile(r"(^|[/:])\d{7}-[0-9a-f]{32}\.txt$")
_GUTENBERG_START = re.compile(r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG.*$|^\*END\*? ?THE SMALL PRINT!.*$", re.M)
_GUTENBERG_END = re.compile(
    r"^\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG|^End of (?:the |this )?Project Gutenberg", re.M | re.I
)


# --- from parts to documents, in the workers -----------------------------------------------------------------------


def _text_of(part: Part, notes: Notes) -> str:
    """A part's bytes as text. Not UTF-8: Windows-1252 if that explains more of it, else the broken bytes are left out."""
    assert isinstance(part.data, bytes)
    try:
        text = part.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _place(part, part.data.count(b"\n", 0, error.start))
        text = part.data.decode("utf-8", "replace")
        num_broken = text.count("\ufffd")
        num_good = len(re.findall(r"[^\x00-\x7f\ufffd]", text))
        if num_broken > num_good:
            text = part.data.decode("cp1252", "replace")
            notes.add("not UTF-8; read as Windows-1252", where)
        else:
            notes.add("broken UTF-8 bytes; left out", where, num_broken)
        text = text.replace("\ufffd", "")
    if "\0" in text:
        notes.add("NUL characters; left out", _place(part), text.count("\0"))
        text = text.replace("\0", "")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _place(part: Part, line: int = 0) -> str:
    return f"{part.name}:{part.first_line + line}"


def _lines_of(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


def _read_text(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    text = _text_of(part, notes)
    key = part.key
    if part.splitting == "file":
        yield Document(_lines_of(text), key)
    elif part.splitting == "line":
        for line in _lines_of(text):
            yield Document([line], key)
            key = None
    else:
        lines: list[str] = []
        for line in map(str.strip, text.split("\n")):
            if line:
                lines.append(line)
            elif lines:
                yield Document(lines, key)
                lines, key = [], None
        yield Document(lines, key)


def _read_gutenberg(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    text = _text_of(part, notes)
    starts = list(_GUTENBERG_START.finditer(text[:100_000])) if part.first_line == 1 else []
    text = text[starts[-1].end() :] if starts else text
    end = _GUTENBERG_END.search(text)
    yield Document(_lines_of(text[: end.start()] if end else text), part.key)


def _read_jsonl(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    wanted = config.field
    for number, line in enumerate(_text_of(part, notes).split("\n")):
        if not line.strip():
            continue
        where = _place(part, number)
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            notes.add("line is not JSON; left out", where)
            continue
        if not isinstance(record, dict) or wanted not in record:
            notes.add(f"record has no field {wanted!r}; left out", where)
        elif not isinstance(record[wanted], str):
            notes.add(f"field {wanted!r} is not text; left out", where)
        else:
            lines = _lines_of(_plain(record[wanted]))
            title = record.get("title")
            if "url" in record and isinstance(title, str) and lines and lines[0] != title.strip():
                lines.insert(0, title.strip())  # WikiExtractor's JSON: the <doc> form has the title as its first line
            yield Document(lines)


def _read_documents(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    for text in part.data:
        assert isinstance(text, str)
        yield Document(_lines_of(_plain(text)))


def _plain(text: str) -> str:
    """A string from JSON or a table may hold what a file's text may not: NULs, lone surrogates, carriage returns."""
    return text.replace("\0", "").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")


def _read_wikiextractor(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    for match in re.finditer(r"<doc [^\n]*?>(.*?)(</doc>|\Z)", _text_of(part, notes), re.S):
        if not match[2]:
            notes.add("<doc> without its end; kept", _place(part))
        text = _MARKUP.sub(" ", html.unescape(match[1])) if _MAY_HAVE_MARKUP.search(match[1]) else match[1]
        yield Document(_lines_of(text))


def _read_wikipedia(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    from electrakit.data.wikitext import prose  # the parser is large, and most corpora do not need it

    text = _text_of(part, notes)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        notes.add("XML with a DOCTYPE; refused", _place(part))
        return
    for match in re.finditer(r"<page>.*?(</page>|\Z)", text, re.S):
        where = _place(part, text.count("\n", 0, match.start()))
        try:
            page = ElementTree.fromstring(_NOT_XML.sub("", match[0]))
        except ElementTree.ParseError:
            notes.add("broken page; left out" if match[1] else "page without its end; left out", where)
            continue
        if page.findtext("ns", "0") != "0" or page.find("redirect") is not None:
            continue
        lines = prose(page.findtext("revision/text") or "")
        if lines:
            yield Document([page.findtext("title", "").strip(), *lines])


def _read_archive(part: Part, notes: Notes, config: CorpusConfig) -> Iterator[Document]:
    """One of OpenWebText's archives: a document is a file."""
    assert isinstance(part.data, bytes)
    stream = opened(buffered(io.BytesIO(part.data)), part.name, notes)  # type: ignore[arg-type]  # BytesIO reads just as well
    if stream.peek(512)[257:262] != b"ustar":
        yield from _read_text(part._replace(data=stream.read(MAX_RECORD_BYTES), splitting="file"), notes, config)
        return
    for name, content in tar_members(stream, part.name, notes):
        data = content.read(MAX_DOCUMENT_BYTES + 1)
        if len(data) > MAX_DOCUMENT_BYTES:
            notes.add(f"archive member longer than {MAX_DOCUMENT_BYTES >> 20} MB; the rest is left out", name)
            data = data[:MAX_DOCUMENT_BYTES]
        yield Document(_lines_of(_text_of(Part(name, "text", data), notes)))


def _short_lines(line: str, part: Part, notes: Notes) -> Iterator[str]:
    """A line as it is, or one that is too long for the tokenizer in several, cut between words."""
    while len(line) > MAX_LINE_CHARACTERS:
        end = line.rfind(" ", 0, MAX_LINE_CHARACTERS)
        if end <= 0:
            notes.add(f"word longer than {MAX_LINE_CHARACTERS:,} characters; cut", _place(part))
            end = MAX_LINE_CHARACTERS
        yield line[:end]
        line = line[end:].lstrip()
    if line:
        yield line


_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_MAY_HAVE_MARKUP = re.compile(r"[<&]|__")
_MARKUP = re.compile(r"</?[a-z]+[^<>\n]{0,60}/?>|__[A-Z]+__")

_READERS: dict[str, Callable[[Part, Notes, CorpusConfig], Iterator[Document]]] = {
    "text": _read_text,
    "gutenberg": _read_gutenberg,
    "jsonl": _read_jsonl,
    "documents": _read_documents,
    "wikiextractor": _read_wikiextractor,
    "wikipedia": _read_wikipedia,
    "archive": _read_archive,
}

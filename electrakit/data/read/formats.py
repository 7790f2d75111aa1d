"""Decodes, parses and cleans chunks of files into documents, in the workers. What cannot be used is counted in `Notes`."""

import html
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from xml.etree import ElementTree

import xxhash

from electrakit.common.errors import first_line
from electrakit.config.corpus import CorpusConfig, Splitting
from electrakit.data.read.archives import tar_members
from electrakit.data.read.files import MAX_RATIO, Allowance, buffered, opened
from electrakit.data.read.notes import Notes
from electrakit.data.read.recognise import BROKEN, OPENWEBTEXT_FILE, book_within, is_utf8, kind_of

MAX_LINE_CHARACTERS = 2**16
MAX_ARCHIVE_BYTES = 24 * 2**20  # decompressed, of an archive that a worker unpacks


class Document(NamedTuple):
    lines: list[str]
    key: int | None = None  # the same for all sections of a document that was too long and was cut


class Chunk(NamedTuple):
    """Some bytes of one file that can be read without the others."""

    name: str
    kind: str
    data: bytes | list[str | None]  # raw bytes, or texts where a library has already parsed them
    first_line: int = 1
    splitting: Splitting = "blank"
    key: int | None = None  # the first document is a section of a longer one with this key
    is_utf8: bool = False  # so far the file has been UTF-8, and not by accident
    namespaces: tuple[str, ...] = ()  # what this Wikipedia calls its files and categories


@dataclass
class ChunkBatch:
    """A task for one worker: chunks of about a megabyte together."""

    chunks: list[Chunk] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)
    next_position: tuple[int, int] = (0, 0)  # where the next batch starts: input, and chunk of that input
    num_bytes_read: int = 0  # of all inputs so far, for the progress bar


FoundDocuments = Iterator[tuple[int, Document]]  # each with the line where it begins


def read_batch(
    batch: ChunkBatch, config: CorpusConfig, places: list[tuple[str, int]] | None = None
) -> tuple[list[Document], Notes]:
    """The documents of a batch, and the notes about them. File and line of each are added to `places`."""
    notes = batch.notes
    documents = []
    for chunk in (inner for outer in batch.chunks for inner in _unpacked(outer, notes)):
        may_be_long = chunk.kind != "text" or _has_long_line(chunk.data)
        are_blank_lines = chunk.kind == "text" and chunk.splitting != "file"  # what has no text is no document
        for line, document in _READERS[chunk.kind](chunk, notes, config):
            lines, key = document
            if not lines:
                if key is None and not are_blank_lines:
                    notes.add("document without text; left out", f"{chunk.name}:{line}")
            elif key is None and config.min_words and sum(len(one.split()) for one in lines) < config.min_words:
                notes.add(f"document of fewer than {config.min_words} words; left out", f"{chunk.name}:{line}")
            else:
                if may_be_long and max(map(len, lines)) > MAX_LINE_CHARACTERS:
                    where = f"{chunk.name}:{line}"
                    document = Document([short for one in lines for short in _short_lines(one, where, notes)], key)
                documents.append(document)
                if places is not None:
                    places.append((chunk.name, line))
    return documents, notes


def identity(document: Document) -> int:
    """A 64-bit hash of a document's content; the sections of a document that was cut share one."""
    if document.key is not None:
        return document.key
    return xxhash.xxh3_64_intdigest("\n".join(document.lines).encode("utf-8", "replace"))


def _has_long_line(data: Any) -> bool:
    """Whether a line is too long for the tokenizer, found with few searches: most chunks have none."""
    end = 0
    while len(data) - end > MAX_LINE_CHARACTERS:
        end = data.rfind(b"\n", end, end + MAX_LINE_CHARACTERS + 1) + 1
        if not end:
            return True
    return False


def _short_lines(line: str, where: str, notes: Notes) -> Iterator[str]:
    """A line that is too long for the tokenizer as several, cut between words."""
    start = 0
    while len(line) - start > MAX_LINE_CHARACTERS:
        end = line.rfind(" ", start + 1, start + MAX_LINE_CHARACTERS)
        if end < 0:
            notes.add(f"word longer than {MAX_LINE_CHARACTERS:,} characters; cut", where)
            end = start + MAX_LINE_CHARACTERS
        if short := line[start:end].strip():
            yield short
        start = end
    yield line[start:].strip()


def _unpacked(chunk: Chunk, notes: Notes) -> Iterator[Chunk]:
    """The chunk itself, or the files of one of OpenWebText's archives: a document is a file."""
    if chunk.kind != "archive":
        yield chunk
        return
    data = chunk.data
    assert isinstance(data, bytes)
    allowance = Allowance(lambda: min(len(data), MAX_ARCHIVE_BYTES // MAX_RATIO))
    stream = opened(buffered(io.BytesIO(data)), chunk.name, notes, allowance)  # type: ignore[arg-type]  # reads just as well
    is_tar = stream.peek(512)[257:262] == b"ustar"
    for name, content in tar_members(stream, chunk.name, notes) if is_tar else [(chunk.name, stream)]:
        num_noted = notes.total
        text = content.read()
        kind = kind_of(text[: 2**16], name) if text else None
        if kind in ("text", "gutenberg", "jsonl", "wikiextractor"):
            kind = "text" if OPENWEBTEXT_FILE.search(name) else kind
            yield Chunk(name, kind, text, splitting="file", is_utf8=is_utf8(text))
        elif text:
            notes.add("not text, or a kind of file that is not read from such an archive; left out", name)
        elif notes.total == num_noted:  # else its damage has been noted
            notes.add("empty file", name)


# --- bytes to text ---------------------------------------------------------------------------------------------------


def _text_of(chunk: Chunk, notes: Notes) -> str:
    """A chunk's bytes as text. Broken bytes are left out; if the file never looked like UTF-8, it is read as Windows-1252."""
    assert isinstance(chunk.data, bytes)
    try:
        text = chunk.data.decode("utf-8")
    except UnicodeDecodeError as error:
        num_lines = chunk.data.count(b"\n", 0, error.start)
        where = f"{chunk.name}:{chunk.first_line + num_lines}"
        text = chunk.data.decode("utf-8" if chunk.is_utf8 else "cp1252", "surrogateescape")
        if not chunk.is_utf8:
            notes.add("not UTF-8; read as Windows-1252", where)
        text = _without_broken(text, where, notes)
    if "\0" in text:
        num_lines = text.count("\n", 0, text.index("\0"))
        text = _without_nuls(text, f"{chunk.name}:{chunk.first_line + num_lines}", notes)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _without_nuls(text: str, where: str, notes: Notes) -> str:
    notes.add("NUL characters; left out", where, text.count("\0"))
    return text.replace("\0", "")


def _without_broken(text: str, where: str, notes: Notes) -> str:
    text, num_broken = BROKEN.subn("", text)
    if num_broken:
        notes.add("broken bytes; left out", where, num_broken)
    return text


def _plain(text: str, where: str, notes: Notes) -> str:
    """A string from JSON or a table may hold what a file's text may not: NULs, lone surrogates, carriage returns."""
    text = _without_nuls(text, where, notes) if "\0" in text else text
    return _without_broken(text, where, notes).replace("\r", "\n")


def _lines_of(text: str) -> list[str]:
    return [line for line in map(str.strip, text.split("\n")) if line]


# --- text to documents -----------------------------------------------------------------------------------------------


def _read_text(chunk: Chunk, notes: Notes, config: CorpusConfig) -> FoundDocuments:
    text = _text_of(chunk, notes)
    if chunk.kind == "gutenberg":
        start, end = book_within(text)
        text = text[start:end]
    key, number = chunk.key, chunk.first_line
    if chunk.splitting == "file":
        yield number, Document(_lines_of(text), key)
    elif chunk.splitting == "line":
        for offset, line in enumerate(map(str.strip, text.split("\n"))):
            if line:
                yield number + offset, Document([line], key)
            key = None
    else:
        for block in "\n".join(map(str.strip, text.split("\n"))).split("\n\n"):
            lines = block.split("\n")
            num_lines = len(lines) + 1
            if not lines[0]:  # a blank line is left over where their number is odd
                key, number, num_lines = None, number + 1, num_lines - 1
            yield number, Document([line for line in lines if line] if "" in lines else lines, key)
            key, number = None, number + num_lines


def _read_jsonl(chunk: Chunk, notes: Notes, config: CorpusConfig) -> FoundDocuments:
    for number, line in enumerate(_text_of(chunk, notes).split("\n"), chunk.first_line):
        line = line.strip().rstrip(",")
        if line in ("", "[", "]"):  # a JSON list with a record on each line is as good
            continue
        where = f"{chunk.name}:{number}"
        try:
            loaded = json.loads(line)
        except (ValueError, RecursionError):
            notes.add("line is not JSON; left out", where)
            continue
        for record in loaded if isinstance(loaded, list) else [loaded]:
            text = record.get(config.field) if isinstance(record, dict) else None
            if isinstance(text, str):
                yield number, Document(_lines_of_record(_plain(text, where, notes), record))
            elif isinstance(record, dict) and config.field in record:
                notes.add(f"field {config.field!r} is not text; left out", where)
            else:
                notes.add(f"record has no field {config.field!r}; left out", where)


def _lines_of_record(text: str, record: dict[str, Any]) -> list[str]:
    title, url = record.get("title"), record.get("url")
    # WikiExtractor's: only <doc> has the title inside
    if isinstance(title, str) and isinstance(url, str) and "curid=" in url:
        lines = _lines_of(_without_markup(text))
        return [title.strip(), *lines] if lines and lines[0] != title.strip() else lines
    return _lines_of(text)


def _read_texts(chunk: Chunk, notes: Notes, config: CorpusConfig) -> FoundDocuments:
    for number, text in enumerate(chunk.data, chunk.first_line):
        where = f"{chunk.name}:{number}"
        if isinstance(text, str):
            yield number, Document(_lines_of(_plain(text, where, notes)), chunk.key)
        else:
            notes.add(f"field {config.field!r} is not text; left out", where)


def _read_wikiextractor(chunk: Chunk, notes: Notes, config: CorpusConfig) -> FoundDocuments:
    for line, content, has_end in _elements(chunk, notes, _DOC, "</doc>"):
        if not has_end:
            notes.add("<doc> without its end; kept", f"{chunk.name}:{line}")
        yield line, Document(_lines_of(_without_markup(content)))


def _without_markup(text: str) -> str:
    """WikiExtractor escapes what it leaves of HTML."""
    text = html.unescape(text) if "&" in text else text
    return _SWITCH.sub(" ", _TAG.sub(" ", text))


def _read_wikipedia(chunk: Chunk, notes: Notes, config: CorpusConfig) -> FoundDocuments:
    from electrakit.data.read.wikipedia import prose  # the parser is large, and most corpora do not need it

    for line, content, has_end in _elements(chunk, notes, _PAGE, "</page>"):
        where = f"{chunk.name}:{line}"
        if not has_end:
            notes.add("page without its end; left out", where)
            continue
        try:
            page = ElementTree.fromstring(f"<page>{_NOT_XML.sub('', content)}</page>")
        except ElementTree.ParseError:
            notes.add("broken page; left out", where)
            continue
        if page.find("redirect") is not None:
            notes.add("page that redirects to another; left out", where)
            continue
        if page.findtext("ns", "0").strip() != "0":
            notes.add("page that is no article; left out", where)
            continue
        try:
            lines = prose(page.findtext("revision/text") or "", chunk.namespaces)
        except Exception as error:  # whatever it is: one article of millions must not stop a run of days
            notes.add("page that could not be read; left out", f"{where}: {first_line(error, 80)}")
            continue
        if lines:
            yield line, Document([page.findtext("title", "").strip(), *lines])
        else:
            notes.add("article without prose; left out", where)


def _elements(chunk: Chunk, notes: Notes, opening: re.Pattern[str], closing: str) -> Iterator[tuple[int, str, bool]]:
    """Line, content and whether it has an end, of each element. It ends at the latest where the next one begins."""
    text = _text_of(chunk, notes)
    found = list(opening.finditer(text))
    ends = [*(match.start() for match in found), len(text)]
    outside = [(0, ends[0])]
    line, position = chunk.first_line, 0
    for match, end in zip(found, ends[1:], strict=True):
        line, position = line + text.count("\n", position, match.start()), match.start()
        content, closed, rest = text[match.end() : end].partition(closing)
        yield line, content, bool(closed)
        outside.append((end - len(rest), end))
    for start, end in outside:
        if not _BETWEEN.fullmatch(text, start, end):
            start = end - len(text[start:end].lstrip())
            line = chunk.first_line + text.count("\n", 0, start)
            notes.add(f"text outside of {closing.replace('/', '')}; left out", f"{chunk.name}:{line}")


_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_PAGE = re.compile("<page>")
_DOC = re.compile(r"^<doc [^\n]*?>(?=\n)|^<doc [^\n>]*>", re.M)
_BETWEEN = re.compile(
    r"\s*(?:</mediawiki>\s*)?(?:<\?xml[^>]*>\s*)?(?:<mediawiki[^>]*>\s*(?:<siteinfo>.*?</siteinfo>\s*)?)?(?:</mediawiki>\s*)?",
    re.S,
)
_TAG = re.compile(r"</?[a-z]+[^<>\n]{0,60}/?>")
_SWITCH = re.compile(r"__[A-Z]+__")

_READERS: dict[str, Callable[[Chunk, Notes, CorpusConfig], FoundDocuments]] = {
    "text": _read_text,
    "gutenberg": _read_text,
    "jsonl": _read_jsonl,
    "texts": _read_texts,
    "wikiextractor": _read_wikiextractor,
    "wikipedia": _read_wikipedia,
}

"""Recognises a file's kind and encoding by its first bytes, and finds where a book of Project Gutenberg begins and ends."""

import html
import json
import lzma
import re


def kind_of(head: bytes, name: str) -> str | None:
    """What kind of file begins with these bytes; None if it is not text."""
    start = head.lstrip()
    if head.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(b"<page>") or (start.startswith(b"<") and b"<mediawiki" in start):
        return "wikipedia"
    if start.startswith(b"<doc "):
        return "wikiextractor"
    if name.lower().endswith((".jsonl", ".ndjson", ".json")) or _is_json_object(start):
        return "jsonl"
    num_control = len(head) - len(head.translate(None, _CONTROL_BYTES))
    is_broken = not head.isascii() and not is_utf8(head)  # text in an old encoding, or no text
    if num_control > len(head) * (0.01 if is_broken else 0.1) or start.startswith(_NOT_TEXT):
        return None
    *parents, last = re.split("[/:]", name)
    is_in_their_folder = "___" in last and "gutenberg" in "/".join(parents).lower()  # "Author___Title.txt"
    if is_in_their_folder or book_within(head.decode("latin-1"))[0]:
        return "gutenberg"
    return "text"


def _is_json_object(start: bytes) -> bool:
    line, newline, _ = start.partition(b"\n")
    if not newline:  # the line may be longer than what we see
        return _JSON_START.match(start) is not None
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def is_utf8(data: bytes) -> bool:
    """Whether there are letters outside ASCII, and more of them make sense as UTF-8 than not."""
    if data.isascii():
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        return len(_NOT_ASCII.findall(text)) > 2 * len(BROKEN.findall(text))  # what is broken is not ASCII either
    return True


def is_spread(head: bytes) -> bool:
    """Whether the first line that could hold a JSON record does not: the file may be pretty-printed."""
    for line in head.split(b"\n")[:-1]:
        if line.strip() not in (b"", b"["):
            try:
                json.loads(line.strip().rstrip(b","))
            except (ValueError, RecursionError):
                return True
            return False
    return False


def is_tar_in_xz(head: bytes) -> bool:
    if not head.startswith(b"\xfd7zXZ"):
        return False
    try:
        return lzma.LZMADecompressor(memlimit=2**28).decompress(head, 512)[257:262] == b"ustar"
    except lzma.LZMAError:
        return False


def wrong_suffix(name: str, kind: str | None, is_packed: bool) -> str | None:
    """A suffix that claims that the file is something else than the text it holds."""
    named = (None if is_packed else _PACKED_NAME.search(name)) or _PARQUET_NAME.search(name)
    return named[0].lower() if named and kind not in (None, "parquet") else None


def ends_with_a_page(tail: bytes) -> bool:
    """Whether a dump ends with a page and not with </mediawiki>. A page that is cut off is noted where it is read."""
    _, _, behind = tail.rpartition(b"</page>")
    return b"</mediawiki>" not in behind and b"<page>" not in behind


def hidden_namespaces(head: bytes) -> tuple[str, ...]:
    """What a dump calls its media (-2), files (6) and categories (14), according to its head."""
    return tuple(html.unescape(name.decode("utf-8", "replace")) for name in _NAMESPACE.findall(head))


def book_within(text: str) -> tuple[int, int]:
    """Where a book begins and ends between Project Gutenberg's header and footer.

    A line of stars is only taken for one of theirs if nothing stands before the first (behind the last) of them, or
    something that speaks of Gutenberg: books about such files exist, and quote them. The last END line is also theirs
    if little stands behind it.
    """
    end = len(text)
    if (
        "gutenberg" not in text[:_MAX_HEADER].lower() + text[-_MAX_FOOTER:].lower()
        and "SMALL PRINT!" not in text[:_MAX_HEADER]
    ):
        return 0, end
    footers = list(_FOOTER.finditer(text, max(0, end - _MAX_FOOTER)))
    last = footers[-1] if footers else None
    is_near_the_end = last is not None and last[0].startswith("*") and end - last.end() < _SHORT_FOOTER
    if last is not None and (is_near_the_end or _is_theirs(text[last.end() :][:4000])):
        end = last.start()
        # "End of the Project Gutenberg EBook of ..." stands before the line of stars
        if len(footers) > 1 and not text[footers[-2].end() : end].strip():
            end = footers[-2].start()
    start = 0
    found = [header.search(text, 0, min(end, _MAX_HEADER)) for header in (_HEADER, _SMALL_PRINT)]
    for header in sorted(filter(None, found), key=re.Match.start):
        if header.start() - start < 2000 if start else _is_theirs(text[: header.start()][:4000]):  # some have both
            start = header.end()
    return start, end


def _is_theirs(text: str) -> bool:
    return not text.strip() or "gutenberg" in text.lower()


_PACKED_NAME = re.compile(r"\.(gz|xz|bz2|zst|zip|tar|tgz|txz)$", re.I)
_PARQUET_NAME = re.compile(r"\.parquet(?=$|\.(gz|xz|bz2|zst)$)", re.I)
OPENWEBTEXT_FILE = re.compile(r"(^|[/:])\d{4,}-[0-9a-f]{16,}\.txt$", re.I)
_CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\x1b"))
_NOT_TEXT = (b"%PDF-", b"{\\rtf", b"\x89PNG", b"\x7fELF", b"\xff\xd8\xff", b"GIF8")
_JSON_START = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:')
BROKEN = re.compile("[\ud800-\udfff]")  # what "surrogateescape" makes of a broken byte
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_NAMESPACE = re.compile(rb'<namespace key="(?:-2|6|14)"[^<>]*>([^<>]{1,100})</namespace>')

_MAX_HEADER, _MAX_FOOTER = 40_000, 60_000  # characters; the longest licence at either end has about 20,000
_SHORT_FOOTER = 2000
_STARS = r"^\*{2,3} ?%s OF (?:TH(?:E|IS) )?(?:COPYRIGHTED )?PROJECT GUTENBERG"
_HEADER = re.compile(  # a long title runs on in the next lines
    rf"{_STARS}(?:[^\n]*\n){{0,2}}?[^\n]*\*\*\*[ \t]*$|{_STARS}[^\n]*$" % ("START", "START"), re.M | re.I
)
_SMALL_PRINT = re.compile(r"^\*+ ?END ?\*? ?THE SMALL PRINT![^\n]*$", re.M)
_FOOTER = re.compile(
    rf"(?:{_STARS}|^End of (?:the |this )?Project Gutenberg)[^\n]*(?:\n[^\n]+){{0,2}}" % "END", re.M | re.I
)

"""Extracts lines of prose from wikitext: what a reader of the article would read aloud.

Two steps. A linear scan cuts what is never prose (comments, references, tables, pictures, most templates) and turns links
into their text; that is nine tenths of the markup, and what makes a parser slow. mwparserfromhell then reads only those
paragraphs that still hold tags, external links, or templates whose words belong to the sentence.
"""

import functools
import html
import re
from collections.abc import Callable

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

from electrakit.data.read.wikipedia_templates import TEMPLATES, Arguments, expand, template_name


def prose(wikitext: str, namespaces: tuple[str, ...] = ()) -> list[str]:
    """Lines of prose: a paragraph, a list item or a section title each. Linear in time.

    `namespaces` are what this Wikipedia calls its files and categories; the English names hold everywhere.
    """
    if REDIRECT.match(wikitext):
        return []
    text = cut_hidden(UNSEEN.sub("", wikitext))
    # bold and italics are 2, 3 or 5 quotes; of 4, one is an apostrophe
    text = QUOTES.sub(lambda found: "'" if len(found[0]) == 4 else "", text)
    text = cut_brackets(INTERLANGUAGE.sub("", text), not_shown((*NOT_SHOWN, *namespaces)))
    text = SMALL_NUMBER.sub(lambda found: found[2].translate(SMALL_DIGITS[found[1].lower()]), text)
    text = INLINE_TAG.sub("", BLOCK_TAG.sub("\n\n", LINE_BREAK.sub(" ", text)))
    return lines(REST_OF_UNCLOSED.sub("", SWITCH.sub("", text)))


# -- the linear scan: what is hidden, and what stands between brackets --------------------------------------------------

HIDDEN_TAGS = [
    "ref", "references", "math", "chem", "ce", "gallery", "timeline", "source", "syntaxhighlight", "pre", "score", "graph", "mapframe",
    "maplink", "imagemap", "table", "templatedata", "hiero", "inputbox", "categorytree", "indicator", "includeonly", "style", "script",
]  # fmt: skip
HIDDEN = re.compile(rf"<!--|<({'|'.join(HIDDEN_TAGS)}|nowiki)\b([^<>]*)>", re.I)
END = {name: re.compile(rf"</{name}\s*>", re.I) for name in [*HIDDEN_TAGS, "nowiki"]}
# a reference that is never closed must not swallow the text up to the end of the next one
END["ref"] = re.compile(r"</ref\s*>|(?=<ref\b)", re.I)
END["!--"] = re.compile("-->")
PLAIN_FORMULA = re.compile(r"[A-Za-z0-9\s.,+\-=()<>/]{1,24}")  # "where D is the diameter"; all else is TeX
IS_INLINE = re.compile(r"\binline\b", re.I)

# literals first: three times as fast as "^ *{|"
BRACKET = re.compile(r"\{\{|\}\}|\[\[|\]\](?!\](?!\]))|\{\||\|\}(?!\})")
OPENER_OF = {"}}": "{{", "]]": "[[", "|}": "{|"}
PARAMETER = re.compile(r"\{\{\{[^{}\n]*\}\}\}")
MAX_DEPTH = 60
UNCLOSED = "\ue000"  # private use: here a bracket opened that is never closed; the rest of the line is not prose
REST_OF_UNCLOSED = re.compile(f"{UNCLOSED}[^\n]*")

NOT_SHOWN = ("file", "image", "media", "category", "datei", "bild", "fichier")
# [[fr:Chat]] leads to the same article elsewhere. Such links stand on lines of their own; within a sentence, and with a
# capital, it is [[Re:Zero]] or [[CSI: Miami]]
INTERLANGUAGE = re.compile(
    r"^[ \t]*(?:\[\[(?:[a-z]{2,3}(?:-[a-z]+){0,2}|simple):[^\s|\[\]{}][^|\[\]{}\n]*\]\][ \t]*)+$", re.M
)
PICTURE = re.compile(r"\s*(?:file|image|media)\s*:", re.I)
DISAMBIGUATION = re.compile(r" *\([^()]*\)$")


def cut_hidden(text: str) -> str:
    """Drop comments and the tags whose content is not prose; what <nowiki> holds is kept, safe from what follows."""
    fragments, position, never_ends = [], 0, set()
    while found := HIDDEN.search(text, position):
        fragments.append(text[position : found.start()])
        position = found.end()
        name = (found[1] or "!--").lower()
        if name != "!--" and found[2].rstrip().endswith("/"):
            continue
        end = None if name in never_ends else END[name].search(text, position)
        if end is None:  # remembered, so that a thousand openers do not mean a thousand searches to the end
            never_ends.add(name)
            fragments.append(UNCLOSED if name in ("ref", "!--") else "")
            continue
        if name == "nowiki" or (name in ("source", "syntaxhighlight") and IS_INLINE.search(found[2])):
            fragments.append(escaped(text[position : end.start()]))
        elif name == "math" and PLAIN_FORMULA.fullmatch(text, position, end.start()):
            fragments.append(escaped(text[position : end.start()].strip()))
        position = end.end()
    return "".join(fragments) + text[position:]


def escaped(text: str) -> str:
    """Text whose markup characters are entities, which are decoded last of all."""
    return re.sub(r"[\[\]{}<>|'=*#:;_]", lambda found: f"&#{ord(found[0])};", text)


@functools.lru_cache(maxsize=8)
def not_shown(namespaces: tuple[str, ...]) -> re.Pattern[str]:
    """Matches a link that shows no words: a picture, or a category."""
    names = (re.escape(name.replace("_", " ")).replace(r"\ ", "[ _]") for name in namespaces)
    return re.compile(rf"\s*(?:{'|'.join(names)})\s*:", re.I)


def cut_brackets(text: str, hidden: re.Pattern[str]) -> str:
    """Replace templates, tables and links, innermost first, by what they show; one pass with a stack."""
    fragments: list[str] = []
    opened: list[tuple[str, int]] = []  # the bracket, and the index of the first fragment it holds
    position = 0
    text = PARAMETER.sub("", text)
    for found in BRACKET.finditer(text):
        bracket = found[0]
        if "|" in bracket and not begins_line(text, found.start()):
            continue
        fragments.append(text[position : found.start()])
        position = found.end()
        if bracket not in OPENER_OF:
            fragments.append("")  # becomes UNCLOSED if need be
            if len(opened) < MAX_DEPTH:
                opened.append((bracket, len(fragments)))
            continue
        depth = closes(bracket, opened)
        if depth is not None:
            kind, first = opened[depth]
            del opened[depth:]
            body = "".join(fragments[first:])
            fragments[first:] = ["" if kind == "[[" and hidden.match(body) else SHOW_AS_TEXT[kind](body)]
    for kind, first in opened:
        if kind != "[[" or any(PICTURE.match(fragment) for fragment in fragments[first : first + 1]):
            fragments[first - 1] = UNCLOSED + kind
    return "".join(fragments) + text[position:]


def begins_line(text: str, position: int) -> bool:
    """Whether a table could begin or end here: only blanks and colons before it on its line."""
    before = text[max(0, position - 20) : position].rstrip(" \t:")
    return not before or before[-1] == "\n"


def closes(bracket: str, opened: list[tuple[str, int]]) -> int | None:
    """Which opened bracket this one closes: the nearest of its kind, but a link does not reach out of a template."""
    for depth in reversed(range(len(opened))):
        if opened[depth][0] == OPENER_OF[bracket]:
            return depth
        if bracket == "]]":
            return None
    return None


def show_link(body: str) -> str:
    target, bar, label = body.partition("|")
    target = target.strip().removeprefix(":")
    return label if label else DISAMBIGUATION.sub("", target) if bar else target


def show_template(body: str) -> str:
    """A template whose words belong to the sentence is left to the parser; every other one is nothing."""
    name = template_name(body.partition("|")[0])
    return f"{{{{{body}}}}}".replace("\n", " ") if name in TEMPLATES else ""


SHOW_AS_TEXT: dict[str, Callable[[str], str]] = {"[[": show_link, "{{": show_template, "{|": lambda body: "\n"}


# -- paragraphs: the parser, for those that still need it ---------------------------------------------------------------

REDIRECT = re.compile(r"\s*#\s*redirect\b", re.I)
SWITCH = re.compile(r"__[A-Z]{3,}__")
QUOTES = re.compile("'{2,}")
LINE_BREAK = re.compile(r"<\s*/?\s*br\b[^<>]*>", re.I)
BLOCK_TAG = re.compile(
    r"</?(?:blockquote|center|div|dd|dl|dt|h[1-6]|hr|li|ol|p|poem|section|table|td|th|tr|ul)\b[^<>]*>", re.I
)
INLINE_TAG = re.compile(
    r"</?(?:abbr|b|bdi|big|cite|code|em|font|i|ins|kbd|noinclude|nowiki|onlyinclude|q|ref|references|s|samp|small|span|"
    r"strong|sub|sup|templatestyles|tt|u|var)\b[^<>]*>",
    re.I,
)
SMALL_NUMBER = re.compile(r"<(sup|sub)>\s*([+\-−]?\d+)\s*</\1>", re.I)
SMALL_DIGITS = {
    "sup": str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻"),
    "sub": str.maketrans("0123456789+-−", "₀₁₂₃₄₅₆₇₈₉₊₋₋"),
}
NEEDS_PARSER = re.compile(r"\{\{|</?[a-zA-Z]|://|\[//|\[mailto:")
# the parser backtracks: its time grows with the square of the brackets that open and do not close
MAX_OPENERS, MAX_PARAGRAPH_CHARACTERS = 120, 50_000


def inline(paragraph: str) -> str:
    """A paragraph without the markup that is left in it."""
    if not NEEDS_PARSER.search(paragraph):
        return paragraph
    num_openers = paragraph.count("<") + paragraph.count("[") + paragraph.count("{{") + paragraph.count("://")
    if num_openers > MAX_OPENERS or len(paragraph) > MAX_PARAGRAPH_CHARACTERS:
        return stripped(paragraph)
    try:
        return stripped(text_of(mwparserfromhell.parse(paragraph, skip_style_tags=True)))
    except (mwparserfromhell.parser.ParserError, RecursionError, ValueError):
        return stripped(paragraph)


def text_of(code: Wikicode | None) -> str:
    return "".join(map(text_of_node, code.nodes)) if code is not None else ""


def text_of_node(node: object) -> str:
    match node:
        case Text() | HTMLEntity():
            return str(node)  # entities are decoded at the very end
        case Template():
            given = {str(one.name).strip().lower(): text_of(one.value).strip() for one in node.params}
            return expand(str(node.name), Arguments(given))
        case ExternalLink():
            return text_of(node.title) if node.brackets else ""
        case Tag():
            return "" if str(node.tag).strip().lower() in HIDDEN_TAGS else text_of(node.contents)
        case Wikilink():
            return text_of(node.text) if node.text is not None else text_of(node.title)
        case Heading():
            return text_of(node.title)
        case _:
            return ""


TEMPLATE_LEFT = re.compile(r"\{\{[^{}]*\}\}")
EXTERNAL_LINK = re.compile(r"\[(?:[a-z]{3,6}:)?//[^\s\[\]]*([^\[\]\n]*)\]", re.I)
BARE_URL = re.compile(r"\b(?:https?|ftp)://[^\s\[\]<>|]*", re.I)
TAG_LEFT = re.compile(r"</?[a-zA-Z][^<>]*>")
DOUBLE_BRACKETS = re.compile(r"\[\[|\]\]|\{\{+|\}\}+")


def stripped(text: str) -> str:
    """The same by regular expressions alone: coarse, but linear. Also takes what the parser left as it was."""
    text = BARE_URL.sub("", EXTERNAL_LINK.sub(r"\1", TEMPLATE_LEFT.sub("", text)))
    return DOUBLE_BRACKETS.sub("", TAG_LEFT.sub("", text))


# -- lines: sections, lists, and the debris that cutting leaves ---------------------------------------------------------

HEADING = re.compile(r"(={1,6})([^\n]*?)=+[ \t]*$")
# lines that begin with a space are shown as they stand: programs and tables; a single one is most often a slip
PREFORMATTED = re.compile(r"^(?: [^\n]*\S[^\n]*(?:\n|\Z)){2,}", re.M)
LIST_MARKER = re.compile(r"[*#:;][*#:;\s]*")
IS_TAIL = re.compile(
    r"(?:references|external links?|see also|(?:foot|end)?notes|further reading|bibliography|(?:general |primary |secondary )?"
    r"sources|citations|works cited|gallery|(?:notes|footnotes|sources|citations) and references|references and \w+|"
    r"bibliography and references|related topics|literature|(?:selected )?publications)",
    re.I,
)
IS_SENTENCE = re.compile(r"[^\W\d_].*\s.*[.!?][\"'”’)]*$")


def lines(text: str) -> list[str]:
    """Text with headings and lists, but nothing else at the start of its lines, as lines of prose."""
    found: list[str] = []
    titles: list[tuple[int, str]] = []  # open sections whose title is not yet in `found`: depth and title
    tail_depth: int | None = None
    paragraph: list[str] = []

    def end_paragraph(is_item: bool = False) -> None:
        if not paragraph:
            return
        for line in inline(" ".join(paragraph)).split("\n"):
            line = tidy(line)
            # in "References" and its like, what is not a sentence of its own is a list of links or of books
            if line and (tail_depth is None or (not is_item and IS_SENTENCE.search(line))):
                found.extend(title for _, title in titles if title)
                titles.clear()
                found.append(line)
        paragraph.clear()

    for line in PREFORMATTED.sub("\n", text).split("\n"):
        first = line[:1]
        if not line.strip() or first == "|" or line.startswith(("----", "!!", "{|")) or (first == "!" and "!!" in line):
            end_paragraph()
        elif first == "=" and (heading := HEADING.match(line)):
            end_paragraph()
            depth, title = len(heading[1]), tidy(inline(heading[2]))
            while titles and titles[-1][0] >= depth:
                titles.pop()
            titles.append((depth, title))
            if tail_depth is None or depth <= tail_depth:
                tail_depth = depth if IS_TAIL.fullmatch(title) else None
        elif marker := LIST_MARKER.match(line):
            end_paragraph()
            paragraph.append(line[marker.end() :])
            end_paragraph(is_item=True)
        else:
            paragraph.append(line)
    end_paragraph()
    return found


UNSEEN = re.compile(
    "[\ue000\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufffe\uffff\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
# repeats are bounded: an unbounded one that need not match takes quadratic time on a long run of commas
# most lines hold nothing to fix, and one search tells
SUSPECT = re.compile(
    r"[\s,;:(\[][,;:.!?)\]]|[,;:(\[]\s[,;:)\]]|[(\[]\s|\((?:or|and|also|from|pronounced)\b|\"\s?\"|“\s?”"
)
EMPTY_BRACKETS = re.compile(r"\([\s,;:/–—-]*\)|\[[\s,;:]*\]|\((?:or|and|also|from|pronounced|[A-Z]\w+:)[\s,;:]*\)")
AFTER_OPENING = re.compile(r"([(\[])[\s,;]+(?:or |and )?")
BEFORE_CLOSING = re.compile(r"[\s,;:]{1,9}([)\]])")
REPEATED_MARK = re.compile(r"([,;:])(?:\s?[,;:]){1,9}(?!\w)(?![-/)])")
SPACE_BEFORE_MARK = re.compile(r"(?<![.…])\s([,;!?)\]]|[:.](?![\w.)/-]| \.))")
COMMA_BEFORE_STOP = re.compile(r"[,;:]\.(?![\w.])")
EMPTY_QUOTES = re.compile(r"\"\s*\"|“\s*”")
HAS_WORD = re.compile(r"[^\W_]")


def tidy(line: str) -> str:
    """One line of text without entities, double spaces, and the punctuation around what was cut."""
    if "&" in line:
        line = UNSEEN.sub("", html.unescape(line))
    line = " ".join(line.split())
    if SUSPECT.search(line):
        line = EMPTY_BRACKETS.sub("", BEFORE_CLOSING.sub(r"\1", AFTER_OPENING.sub(r"\1", line)))
        line = REPEATED_MARK.sub(r"\1", EMPTY_QUOTES.sub("", EMPTY_BRACKETS.sub("", line)))
        line = COMMA_BEFORE_STOP.sub(".", SPACE_BEFORE_MARK.sub(r"\1", " ".join(line.split())))
    line = line.strip(" ,;|")
    return line if HAS_WORD.search(line) else ""

"""Extracts paragraphs of English prose from Python source: the text that every Python installation carries (`builtin:python`).

Docstrings are half prose, half notation. They are cut into paragraphs by their layout, the markup is taken off, and what
does not then read like an English sentence is dropped: precision over recall.
"""

import ast
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path

import xxhash

SKIPPED_FOLDERS = {
    "test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "node_modules", "electrakit", "__pycache__",
}  # fmt: skip
MAX_SOURCE_CHARACTERS = 5_000_000  # larger ones are generated tables
DOCSTRING = re.compile(r'"""(.*?)"""', re.S)  # nearly always


def python_files() -> list[Path]:
    """Every .py file of this Python's standard library and of its installed packages, in a fixed order."""
    roots = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return [file for root in roots for file in sorted(files_below(root), key=lambda file: file.parts)]


def paragraphs_of_file(file: Path, min_docstring_share: float = 0.0) -> list[str]:
    """The prose of one source file; none if it cannot be read, or if a smaller share of it is docstrings."""
    try:
        source = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    if min_docstring_share and sum(map(len, DOCSTRING.findall(source))) < min_docstring_share * len(source):
        return []
    return paragraphs(source)


def without_repeats(documents: Iterable[list[str]]) -> Iterator[list[str]]:
    """Each document without the paragraphs that it or an earlier one has had before."""
    seen: set[int] = set()
    for document in documents:
        new = []
        for paragraph in document:
            digest = xxhash.xxh3_64_intdigest(paragraph.encode())
            if digest not in seen:
                seen.add(digest)
                new.append(paragraph)
        yield new


def paragraphs(source: str) -> list[str]:
    """The docstrings, read with `ast`, nothing imported."""
    found = []
    for docstring in docstrings(source):
        for block in blocks(docstring):
            text = without_markup(block)
            if is_readable(text):
                found.append(text)
            elif len(text) >= 2 * MIN_CHARACTERS:
                found.extend(readable_part(text))
    return found


# -- files and docstrings -----------------------------------------------------------------------------------------------


def files_below(root: str) -> Iterator[Path]:
    """The source files below a folder; links to folders are not followed, so no checkout is entered."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        for name in names:
            if name.endswith(".py") and not name.startswith(("test_", "__editable__")):
                yield Path(folder, name)


def docstrings(source: str) -> list[str]:
    """The docstrings of a module, its classes and functions, in the order of the file; none if it does not parse."""
    if len(source) > MAX_SOURCE_CHARACTERS or not ('"""' in source or "'''" in source):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[str] = []
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                found.append(text)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments)) if (
                "doc" in name  # add_docstr(abs, """..."""), as torch and numpy have it
            ):
                found.extend(
                    each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if "doc" in name.lower():
                found.append(text)
            case _:
                parts = (getattr(node, name, ()) for name in ("body", "handlers", "orelse", "finalbody"))
                waiting.extend(reversed(list(itertools.chain.from_iterable(parts))))
    return [cleandoc(text) for text in found if len(text) >= MIN_CHARACTERS]


# -- layout: a docstring as blocks of lines that belong together --------------------------------------------------------

UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}$")
DIRECTIVE = re.compile(r"\.\.(?:\s|$)")
ADMONITION = re.compile(r"\.\. (?:note|warning|tip|important|hint|caution|attention|danger|admonition)::\s*", re.I)
FIELD = re.compile(
    r"[:@](?:param(?:eter)?|arg(?:ument)?|keyword|key|raises?|returns?|yields?|var|ivar|cvar|note)\b[^:]{0,80}:\s*"
)
ANY_FIELD = re.compile(r"[:@]\w[^:`]{0,80}:(?:\s|$)")
LIST_ITEM = re.compile(r"(?:[-*+•o]|\(?(?:\d{1,3}|[a-zA-Z])[.)]|\[\d+\])\s+")
NUMPY_ENTRY = re.compile(r"[\w*`'\"., {}|()\[\]/-]{1,80}\s:(?:\s|$)")
GOOGLE_ENTRY = re.compile(
    r"(?!(?:Note|Notes|Warning|Caution|Important|Tip|Caveat|Remark|Hint|NB)\b)"
    r"(?:`+[^`]{1,60}`+|\*{0,2}[\w.]{1,60}(?:,\s?\*{0,2}[\w.]{1,60}){0,3})\s?(?:\([^()]{0,200}(?:\([^()]{0,80}\)[^()]{0,80}){0,3}\))?\s?"
    r"(?::(?:\s+|$)|\s--?\s+|\s–\s+)"
)
ALIGNED = re.compile(r"\S {3,}\S|[^.!?:] {2}\S|\t\S|--\||\|--|\+--|──|^\||\|$")


PROMPT = (">>>", "In [", "$ ", "% ", "# ", "#!")
NOT_PROSE = "\ufffd"  # put into a line to have it refused, and with it the sentence it is joined to


def blocks(docstring: str) -> Iterator[str]:
    """Runs of lines that belong together, each joined to one line, without bullets and the names of parameters."""
    current: list[str] = []
    current_indent = 0
    is_hanging = False  # a list item or an entry: its second line is indented more than its first
    for indent, text in [*visible_lines(docstring), (0, "")]:
        item = LIST_ITEM.match(text) or FIELD.match(text)
        is_second_of_hanging = is_hanging and len(current) == 1
        if (
            current
            and text
            and not item
            and (indent > current_indent if is_second_of_hanging else indent == current_indent)
        ):
            current.append(text)
            current_indent = indent
            continue
        if len(joined := " ".join(current)) >= MIN_CHARACTERS:
            yield joined
        current, current_indent, is_hanging = [], indent, False
        if item is None and (ANY_FIELD.match(text) or NUMPY_ENTRY.match(text)):
            continue
        if opening := item or GOOGLE_ENTRY.match(text):
            is_hanging = True
            text = text[opening.end() :]
        if text:
            current.append(text)


def visible_lines(docstring: str) -> Iterator[tuple[int, str]]:
    """Indent and text of the lines outside code, titles and directives; "" where a paragraph ends."""
    fence: str | None = None
    code_indent: int | None = None  # what is indented more than this is code, or belongs to a directive
    lines = docstring.expandtabs().split("\n")
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if fence or text.startswith(("```", "~~~")):
            fence = text[:3] if fence is None else None if text.startswith(fence) else fence
            yield indent, ""
        elif not text or UNDERLINE.fullmatch(text) or UNDERLINE.fullmatch(following.strip()):
            yield indent, ""
        elif code_indent is not None and indent > code_indent:
            continue
        elif DIRECTIVE.match(text):
            admonition = ADMONITION.match(text)
            code_indent = None if admonition else indent
            yield indent, ""
            if admonition and text[admonition.end() :]:
                yield indent, "- " + text[admonition.end() :]
        else:
            code_indent = indent if text.endswith("::") else None
            text = text[:-1] if text.endswith("::") else text
            yield indent, text + NOT_PROSE if ALIGNED.search(text) or text.startswith(PROMPT) else text


# -- markup -------------------------------------------------------------------------------------------------------------

HAS_MARKUP = re.compile(r"[`*<\[|_\\$]|https?:|\s\s|[^\S ]")
ROLE = re.compile(r"(?::[a-zA-Z][\w:+.-]{0,40}|\b(?:attr|class|func|meth|mod|ref)):`([^`]{1,200})`(?:_\b)?")
LITERAL = re.compile(r"``([^`]{1,200})``")
CROSS_REFERENCE = re.compile(r"`([^`]{1,200})`_{0,2}")
MARKDOWN_LINK = re.compile(r"!?\[([^\[\]]{1,200})\]\((?:https?:|[#./])?[^()\s]{0,300}\)")
AUTO_LINK = re.compile(r"\[`([^`\[\]]{1,100})`\]")
TARGET = re.compile(r"(?<=[^\s<])\s*<[^<>]*>$")
QUALIFIED = re.compile(r"~?!?(?:[A-Za-z_]\w*\.)+")
FOOTNOTE = re.compile(
    r"(?:(\b(?:in|by|see|of|from|to|and|with|on|as|also|eg|cf\.|e\.g\.),?)|\b)\s?\[(?:\d{1,3}|#\w*|\*|[A-Z]\w{1,20})\]_?(?!\w)"
)
EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*]{1,200})(?<=[^\s*])\1(?![\w*])")
URL_IN_BRACKETS = re.compile(r"\s?(?:\((?:see:? |cf\.? )?https?://[^\s()]+\)|<https?://[^\s<>]+>)", re.I)
HTML_TAG = re.compile(r"</?(?:a|b|br|code|em|i|li|p|pre|small|strong|sub|sup|tip|tt|ul|u)\b[^<>]{0,200}>", re.I)
BARE_REFERENCE = re.compile(r"\b([A-Za-z]+)__?(?=[\s.,;:)]|$)")


def without_markup(text: str) -> str:
    """The words that the markup shows; what cannot be read aloud stays, for `is_readable` to refuse."""
    if HAS_MARKUP.search(text):
        if "`" in text:
            text = AUTO_LINK.sub(lambda found: f"`{found[1].rpartition('.')[2]}`", text)
            text = ROLE.sub(role_text, text)
            text = LITERAL.sub(r"\1", text)
            text = CROSS_REFERENCE.sub(lambda found: TARGET.sub("", found[1]).lstrip("."), text)
        text = URL_IN_BRACKETS.sub("", MARKDOWN_LINK.sub(r"\1", text))
        # a mark at the end of a phrase goes; in "as described in [1]_" it is part of the sentence, which is refused
        text = FOOTNOTE.sub(lambda found: "$" if found[1] else "", text)
        text = HTML_TAG.sub("", EMPHASIS.sub(r"\2", text))
        text = " ".join(BARE_REFERENCE.sub(r"\1", text).split())
    return text


def role_text(found: re.Match[str]) -> str:
    """:class:`~foo.Bar` is Bar, :ref:`the guide <guide>` is the guide; a formula longer than a name is refused."""
    if found[0].startswith(":math:"):
        return found[1] if found[1].isalnum() else "$"
    shown = TARGET.sub("", found[1]).lstrip("!")
    return QUALIFIED.sub("", shown) if shown.startswith("~") else shown


# -- prose or not -------------------------------------------------------------------------------------------------------

MIN_CHARACTERS, MIN_WORDS, MAX_WORDS = 40, 8, 500
SENTENCE_START = re.compile(r"[\"'“(]?[A-Z]")
ENDS = re.compile(r"[.!?:][\"'”)]{0,2}$")
# an ordinary word in its punctuation; what is left over is names, numbers and symbols
ORDINARY = re.compile(r"(?<!\S)[(\"'“‘]{0,2}(?:[A-Z]?[a-z]+(?:['’/-][a-z]+){0,3}|I|A)[.,;:!?)\"'”’]{0,3}(?!\S)")
LOWER = re.compile(r"(?<!\S)[(\"'“‘]{0,2}[a-z]+(?:['’-][a-z]+){0,3}[.,;:!?)\"'”’]{0,3}(?!\S)")
STOP_WORDS = frozenset(
    "a about above after all also an and any are as at be because been before being below between both but by can cannot "  # noqa: SIM905
    "could did do does doing each either else even every few for from further had has have having how however if in into is "
    "it its just like may might more most must no nor not of off on once one only or other our out over own same should "
    "since so some such than that the their them then there therefore these they this those through thus to too two under "
    "until up upon us use used using very was we were what when where whether which while who whose why will with within "
    "without would you your".split()
)
MIN_ORDINARY, MIN_LOWER, MIN_STOP_WORDS = 0.85, 0.72, 0.25
SYMBOL = re.compile(r"[^A-Za-z\s.,;:'\"!?()’“”-]")
MAX_SYMBOLS = 0.03


REFUSED = re.compile(
    r"[`\\$|{}<>~^=\[\]#@]|https?:|www\.|\w\(\w*\s*=|\*\*|::|\.\.(?!\.)\s|--+>|->|\s--\s.*\s--\s.*\s--\s|…\s?$|\ufffd"
)
SENTENCE_END = re.compile(
    r"(?<=[a-z\d)\"'][.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\betc\.)\s+(?=[A-Z\"'(])"
)


def readable_part(text: str) -> list[str]:
    """The first sentences of a paragraph, up to the one that is not prose."""
    kept: list[str] = []
    for sentence in SENTENCE_END.split(text):
        if REFUSED.search(sentence) or not (SENTENCE_START.match(sentence) and ENDS.search(sentence)):
            break
        kept.append(sentence)
    while kept and not is_readable(" ".join(kept)):
        kept.pop()
    return [" ".join(kept)] if kept else []


def is_readable(text: str) -> bool:
    """Whether a line reads like English: whole sentences, ordinary words, and enough of the small ones."""
    if len(text) < MIN_CHARACTERS or not SENTENCE_START.match(text) or not ENDS.search(text):
        return False
    words = text.split()
    num_words = len(words)
    if not MIN_WORDS <= num_words <= MAX_WORDS or text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    num_stop_words = sum(word in STOP_WORDS for word in words)
    return (
        num_stop_words >= MIN_STOP_WORDS * num_words
        and len(SYMBOL.findall(text)) <= MAX_SYMBOLS * len(text)
        and len(LOWER.findall(text)) >= MIN_LOWER * num_words
        and len(ORDINARY.findall(text)) >= MIN_ORDINARY * num_words
        and not REFUSED.search(text)
    )

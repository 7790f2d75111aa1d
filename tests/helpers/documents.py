"""The documents of the project, and what stands in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGES = sorted((PROJECT / "docs").glob("*.md"))
DOCUMENTS = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", PROJECT / "CHANGELOG.md", *PAGES]
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.M | re.S)


def name_of(document: Path) -> str:
    return str(document.relative_to(PROJECT))


def text_of(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def fences(document: Path) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block. `sh` and `python` are run by a test, `bash` and `py` are only read."""
    for match in FENCE.finditer(text_of(document)):
        indent, _, language, content = match.groups()
        yield language.strip(), re.sub(f"^{indent}", "", content, flags=re.M)


def blocks(document: Path, language: str) -> list[str]:
    return [content for own, content in fences(document) if own == language]


def prose(document: Path) -> str:
    """The text without fenced blocks."""
    return FENCE.sub("", text_of(document))


def shell_lines(document: Path, languages: tuple[str, ...] = ("", "sh", "bash")) -> list[str]:
    """The lines of shell blocks, those that end with a backslash joined with the next."""
    text = "\n".join(content for own, content in fences(document) if own in languages)
    return [line.strip() for line in text.replace("\\\n", " ").splitlines()]


def electra_arguments(line: str) -> list[str] | None:
    """What a line of shell gives to `electra`, directly or through torchrun; None if it does not call it."""
    match = re.match(r"(?:until )?electra (.*)", line) or re.match(r"torchrun .* -m -- electrakit (.*)", line)
    if match is None:
        return None
    words = shlex.shlex(match[1], posix=True, punctuation_chars=True)
    words.whitespace_split = True
    arguments: list[str] = []
    for word in words:
        if set(word) <= set(";&|<>()"):
            break
        arguments.append(word)
    return arguments


def inline_code(document: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(document))


def links(document: Path) -> list[str]:
    """What the text links to, pictures too."""
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]+`", "", prose(document)))


def anchors(document: Path) -> set[str]:
    """The headings as GitHub and mkdocs make anchors of them; documents avoid headings of which they do not make the same."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def finetuning_commands() -> list[str]:
    """The commands of the document on fine-tuning: one line each, loops unrolled, comments left out."""
    found = []
    for block in blocks(PROJECT / "docs" / "finetuning.md", "sh"):
        loop = r"^for (\w+) in ([^;]+); do\n(.*?)^done\n"
        block = re.sub(
            loop,
            lambda match: "".join(match[3].replace(f"${match[1]}", value) for value in match[2].split()),
            block,
            flags=re.M | re.S,
        )
        found += [line.split("  #")[0].strip() for line in block.splitlines()]
    return found

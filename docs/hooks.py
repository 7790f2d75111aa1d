"""Hooks of mkdocs that add pages from outside docs/ and rewrite links between them.

The README is the front page. CHANGELOG, CONTRIBUTING, the notebook, and each file of the repository that a page links to become pages, too.
Links are written for the repository, where they work as they are; for the site they are rewritten.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "notebooks/walk.ipynb": "notebook.md",
}
LANGUAGES = {".sh": "bash", ".py": "python", ".cpp": "cpp", ".yml": "yaml", ".toml": "toml"}
LINK = re.compile(r"(\]\(|\b(?:src|href|srcset)=\")([^)\s\"#]+)")  # links of Markdown, and of HTML inside it
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1 *$", re.M | re.S)


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs with the files of docs/: add the other pages."""
    from mkdocs.structure.files import File

    documents = [path for path in PAGES if path.endswith(".md")] + [f"docs/{file.src_uri}" for file in files]
    linked = {path for document in documents if document.endswith(".md") for path in links_of(document)}
    for path in [*PAGES, *sorted(linked)]:
        is_new = not path.startswith("docs/") and page_of(path) not in files.src_uris
        if is_new and (PROJECT / path).exists():
            files.append(File.generated(config, page_of(path), content=content_of(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the Markdown of a page: rewrite its links."""
    return rewrite_links(markdown, source_of(page.file.src_uri))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the HTML of a page: in the reference, "PrepareConfig explains the settings" becomes a link."""
    if page.file.src_uri != "api.md":
        return html
    homes = {home.rpartition(".")[2]: home for home in re.findall(r'id="(electrakit(?:\.\w+)*\.\w+Config)"', html)}
    return re.sub(
        r"\b(\w+Config)\b(?= explains)|(?<=those of )(\w+Config)\b",
        lambda match: f'<a href="#{homes[match[0]]}">{match[0]}</a>' if match[0] in homes else match[0],
        html,
    )


def source_of(page: str) -> str:
    """The file of the repository that a page is made from."""
    sources = {made: path for path, made in PAGES.items()}
    return sources.get(page, page.removeprefix("repository/").removesuffix(".md") if is_copy(page) else f"docs/{page}")


def is_copy(page: str) -> bool:
    return page.startswith("repository/")


def page_of(path: str) -> str:
    """The page that a file of the repository is on."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PAGES.get(path, f"repository/{path}.md")


def links_of(document: str) -> list[str]:
    """The files of the repository that a document links to."""
    text = FENCE.sub("", (PROJECT / document).read_text(encoding="utf-8"))
    return [resolve(link, document) for _, link in LINK.findall(text) if is_inside(link)]


def is_inside(link: str) -> bool:
    return not re.match(r"[a-z]+:|/", link)


def resolve(link: str, document: str) -> str:
    """`../recipes/slurm.sh` in docs/training.md is recipes/slurm.sh."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(document), link))


def rewrite_links(text: str, document: str) -> str:
    """The document's text, with links that lead from its page to other pages of the site."""
    here = posixpath.dirname(page_of(document)) or "."

    def rewritten(match: re.Match[str]) -> str:
        opening, link = match.groups()
        if not is_inside(link):
            return match[0]
        page = page_of(resolve(link, document))
        if opening.endswith('"'):  # mkdocs does not rewrite links in HTML
            page = re.sub(r"\.md$", ".html", page)
        return opening + posixpath.relpath(page, here)

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(rewritten, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, text[end:])])


def content_of(path: str) -> str:
    """A file of the repository as a page."""
    file = PROJECT / path
    if file.is_dir():
        return f"# {path}/\n\n" + "\n".join(
            f"## {each.name}\n\n{fenced(each)}" for each in sorted(file.iterdir()) if each.is_file()
        )
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        return notebook_page(json.loads(file.read_text(encoding="utf-8")), path)
    return f"# {path}\n\n{fenced(file)}"


def fenced(file: Path) -> str:
    return f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8').rstrip()}\n````\n"


def notebook_page(notebook: dict[str, Any], path: str) -> str:
    """A notebook as Markdown, with its code in fences."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join([*parts, f"This page is `{path}` of the repository, without its output."])

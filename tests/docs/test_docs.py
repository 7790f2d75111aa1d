"""What the documents say is so: commands and settings exist, links lead somewhere, the site is whole and needs nothing from outside."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import electrakit as ek
from electrakit import presets
from electrakit.cli import preset_arguments
from electrakit.cli.verbs import AUTO, VERBS, parse_verb
from electrakit.common.errors import UserError
from electrakit.config.finetune import FINETUNE_PRESETS
from tests.helpers.documents import (
    DOCUMENTS,
    PAGES,
    PROJECT,
    anchors,
    blocks,
    electra_arguments,
    fences,
    inline_code,
    links,
    name_of,
    prose,
    shell_lines,
    text_of,
)

OTHERS = {  # options of other programs that the text names
    "--tyro-print-completion",
    *("--nproc-per-node", "--signals-to-handle", "--shutdown-timeout", "--max-restarts", "--run-path", "--signal"),
    *("--json", "--na-prob-file", "--setting"),
}


# Commands and settings


def parse(words: list[str]) -> None:
    """Read a command as `electra` would; SystemExit or UserError if it cannot."""
    verb, *rest = words
    if verb in ("pretrain", "show"):
        if rest[0] == AUTO:  # it would measure the machine, and read the shards
            assert "--budget" in rest or "--help" in rest
            rest[0] = "modern_mini"
        preset_arguments.config_from_arguments(rest, verb)
        return
    if "--preset" in rest and rest[place := rest.index("--preset") + 1] not in FINETUNE_PRESETS:
        rest[place] = "paper"  # a file that the commands before would have made
    parse_verb([verb, *rest])


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_electra_command_is_one_that_electra_takes(document, capsys):
    for line in shell_lines(document):
        words = electra_arguments(line)
        if words is None:
            continue
        assert words and words[0] in VERBS, f"{name_of(document)}: {line}: no such verb"
        try:
            parse(words)
        except UserError as error:
            pytest.fail(f"{name_of(document)}: {line}: {error}")
        except SystemExit as stop:
            assert stop.code == 0, f"{name_of(document)}: {line}: {capsys.readouterr().err}"


def test_commands_that_are_wrong_are_seen():
    assert electra_arguments("echo electra show mini") is None
    assert electra_arguments("until electra show mini; do") == ["show", "mini"]
    assert electra_arguments("torchrun --nproc-per-node 2 -m -- electrakit pretrain mini --run x &") == [
        *("pretrain", "mini", "--run", "x")
    ]
    for line in ("electra prepare corpus/ --out x", "electra glue m --data d --out o --seeds 0", "electra show small"):
        with pytest.raises((SystemExit, UserError)):
            parse(electra_arguments(line))


@cache
def options_of(verb: str) -> set[str]:
    if verb in ("pretrain", "show"):
        names = {"--vocab-size", "--help", "--config"}
        for name in presets.PRESETS:
            config = presets.PRESETS[name]()
            names |= {
                *preset_arguments.option_names(config),
                *(f"--{option}" for option in preset_arguments.choices_of(name)),
            }
        return names
    settings = VERBS[verb].settings
    negated = {f"--no-{field.name.replace('_', '-')}" for field in fields(settings) if field.default is True}
    return (
        negated
        | {f"--{field.name.replace('_', '-')}" for field in fields(settings)}
        | {"--help", "--config", "--license"}
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_option_that_the_text_names_exists(document):
    known = set().union(*(options_of(verb) for verb in VERBS)) | OTHERS
    scripts = [*(PROJECT / "benchmarks").glob("*.py"), *(PROJECT / "recipes").glob("*.sh")]
    known |= {option for path in scripts for option in re.findall(r"--[a-z][\w-]+", text_of(path))}
    for code in inline_code(document):
        words = code.split()
        if words[0] == "electra" and len(words) > 1 and words[1] in VERBS:
            mentioned, allowed = re.findall(r"(?<=\s)--[a-z][\w.-]*", code), options_of(words[1])
        else:
            mentioned, allowed = re.findall(r"^--[a-z][\w.-]*|(?<=\s)--[a-z][\w.-]*", code), known
        for option in mentioned:
            assert option in allowed, f"{name_of(document)}: `{code}`: there is no {option}"
        assert words[0] != "electra" or len(words) == 1 or words[1] in {*VERBS, *OTHERS, "VERB", "--help"}, code


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_piece_of_python_is_python_and_uses_names_that_exist(document):
    for content in blocks(document, "python") + blocks(document, "py"):
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ek":
                assert node.attr in ek.__all__, f"{name_of(document)}: ek.{node.attr}"
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ek.presets":
                assert node.attr in presets.PRESETS, f"{name_of(document)}: ek.presets.{node.attr}"


def test_every_block_says_what_it_is():
    known = {"", "sh", "bash", "python", "py", "text", "json", "html", "yaml"}
    for document in DOCUMENTS:
        assert {language for language, _ in fences(document)} <= known, name_of(document)


# Links


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(document):
    for link in links(document):
        if re.match(r"[a-z]+:", link):
            assert re.fullmatch(r"https?://[\w.-]+(:\d+)?(/[^\s<>\"]*)?", link), f"{name_of(document)}: {link}"
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert target.exists(), f"{name_of(document)}: {link}"
        assert target.resolve().is_relative_to(PROJECT), f"{name_of(document)}: {link}"
        if anchor:
            assert target.suffix == ".md" and anchor in anchors(target), f"{name_of(document)}: {link}"


def test_every_page_can_be_reached_from_the_readme():
    linked = {(PROJECT / link.partition("#")[0]).resolve() for link in links(PROJECT / "README.md")}
    assert {name_of(page) for page in PAGES if page.resolve() not in linked} == set()


def test_documents_begin_with_a_title_and_have_no_heading_twice():
    for document in PAGES:
        headings = re.findall(r"^(#+) (.+)$", prose(document), re.M)
        levels = [level for level, _ in headings]
        # with a second title, the site's table of contents would have holes
        assert levels[0] == "#" and levels.count("#") == 1, name_of(document)
        assert len(anchors(document)) == len(headings), name_of(document)  # else a link to one leads to the other


# Reference


def test_the_reference_has_every_public_name():
    named = re.findall(r"^::: ([\w.]+)$", text_of(PROJECT / "docs" / "api.md"), re.M)
    homes = {home if name == "presets" else f"{home}.{name}" for name, home in ek._HOMES.items()}
    assert homes <= set(named), sorted(homes - set(named))
    assert len(named) == len(set(named))


def test_every_public_name_says_what_it_is_for():
    for name in ek.__all__:
        assert (getattr(ek, name).__doc__ or "").strip(), name


# The site


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as `make docs` builds it: any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.long
def test_the_site_is_built_without_a_warning_and_has_every_page(site):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {f"{page.stem}.html" for page in PAGES} <= pages
    assert {"index.html", "changelog.html", "contributing.html", "notebook.html"} <= pages
    front = (site / "index.html").read_text(encoding="utf-8")
    assert "text encoders" in front and 'href="walk.html"' in front and 'src="images/playground.png"' in front
    # search knows the reference
    assert "train_tokenizer" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.long
def test_every_link_and_file_of_the_site_is_there(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links are absolute: it is shown anywhere
            continue
        html = page.read_text(encoding="utf-8")
        for link in re.findall(r'(?:href|src)="([^"#]*)', html):
            if not link or re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / link.partition("?")[0]).resolve()
            assert target.exists() or (target / "index.html").exists(), f"{page.relative_to(site)}: {link}"


@pytest.mark.long
def test_the_site_fetches_nothing_from_outside(site):
    loads = re.compile(r'<(?:script|img|iframe|source|video)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)"')
    for page in site.rglob("*.html"):
        for tag in loads.findall(page.read_text(encoding="utf-8")):
            address = next(filter(None, tag))
            assert not re.match(r"(https?:)?//", address), f"{page.relative_to(site)}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name

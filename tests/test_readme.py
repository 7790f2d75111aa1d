"""The documents are true: every command and every piece of Python in them is run, every link leads somewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
DOCUMENTS = [
    PROJECT / "README.md",
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "CHANGELOG.md",
    *sorted((PROJECT / "docs").glob("*.md")),
]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture
def folder(tmp_path):
    """An empty folder with a small corpus/ of healthy English in it."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    text = re.sub(
        r"```.*?```|[|`*_#>\[\]()]", " ", "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS), flags=re.S
    )
    paragraphs = [paragraph for paragraph in text.split("\n\n") if len(paragraph.split()) > 12]
    for number in range(10):
        varied = [f"{paragraph} This is version {number} of the paragraph." for paragraph in paragraphs]
        (corpus / f"{number}.txt").write_text("\n\n".join(varied), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [PROJECT / "README.md", *(PROJECT / "docs" / name for name in ("walk.md", "models.md", "training.md"))],
    ids=lambda path: path.name,
)
def test_the_commands_and_the_python_of_a_document_run_as_they_stand(document, folder):
    electra = f'{sys.executable} -m electrakit "$@"'
    (folder / "bin").mkdir()
    (folder / "bin" / "electra").write_text(f"#!/bin/sh\n{electra}\n")
    (folder / "bin" / "electra").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}
    num_run = 0
    for command in (line for block in blocks(document, "sh") for line in block.splitlines()):
        if command.startswith("make "):
            continue  # the next test looks at these
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
        # on a corpus this small the doctor may be serious about its size: that is its answer, not a failure
        assert done.returncode == 0 or (command.startswith("electra doctor") and done.returncode == 1), (
            f"{command}\n{done.stdout}\n{done.stderr}"
        )
        num_run += 1
    code = "\n".join(blocks(document, "python"))  # a document's pieces of Python follow each other
    if code:
        script = folder / "example.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, script.name], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        num_run += 1
    assert num_run >= 4


def test_every_make_target_that_a_document_names_exists():
    targets = set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.M))
    named = {
        name
        for document in DOCUMENTS
        for block in blocks(document, "sh")
        for name in re.findall(r"^make (\w+)", block, re.M)
    }
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize(("target", "command"), [("demo", "electra demo"), ("test", "python -m pytest")])
def test_make_runs_what_the_readme_says(target, command):
    """As make would do it, in a clean clone and where everything is there: nothing is run."""
    for setting in ([], ["--assume-old=.venv/installed"]):
        done = subprocess.run(["make", "-n", *setting, target], cwd=PROJECT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert any(line.endswith(command) or f"{command} " in line for line in lines)
        assert any("pip install" in line for line in lines) == (not setting and is_to_be_set_up())
    if target == "test":
        assert all(any(tool in line for line in lines) for tool in ("ruff check", "ruff format --check", "mypy"))


def is_to_be_set_up() -> bool:
    """Whether the environment is missing, or older than what it is made from."""
    done = subprocess.run(["make", "-q", ".venv/installed"], cwd=PROJECT)
    return done.returncode != 0


def test_every_link_within_the_project_leads_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_file_that_contributing_names_exists():
    for name in re.findall(r"`(electrakit/[\w/]+\.py)`", (PROJECT / "CONTRIBUTING.md").read_text()):
        assert (PROJECT / name).exists(), name


def test_ci_runs_the_readmes_test_command():
    assert "make test" in (PROJECT / ".ci" / "run").read_text()
    assert os.access(PROJECT / ".ci" / "run", os.X_OK)
    assert shutil.which("make")

"""Every command and every Python example of the documents is run as it is written."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.helpers.documents import DOCUMENTS, PROJECT, blocks, fences, name_of, text_of
from tests.helpers.processes import HANG, wait_until

RUN = [
    "README.md",
    "docs/walk.md",
    "docs/own_corpus.md",
    "docs/troubleshooting.md",
    "docs/training.md",
    "docs/continuing.md",
]
RUN += ["docs/any_two_models.md", "docs/models.md", "docs/export.md", "docs/report.md", "docs/playground.md"]
NOT_HERE = {
    "docs/finetuning.md": "test_finetuning_document.py",
    "docs/performance.md": "benchmarks: minutes on a quiet machine",
    "CONTRIBUTING.md": "make's targets, looked at below",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a small corpus/ of healthy English in it, and a task in train.tsv and dev.tsv. All documents walk through it."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "corpus").mkdir()
    text = re.sub(r"```.*?```|[|`*_#>\[\]()]", " ", "".join(map(text_of, DOCUMENTS)), flags=re.S)
    paragraphs = [paragraph for paragraph in text.split("\n\n") if len(paragraph.split()) > 12]
    for number in range(10):
        varied = [f"{paragraph} This is version {number} of the paragraph." for paragraph in paragraphs]
        (folder / "corpus" / f"{number}.txt").write_text("\n\n".join(varied), encoding="utf-8")
    for name in ("train", "dev"):
        rows = [
            f"{' '.join(paragraph.split()[:12])}\t{'long' if len(paragraph) > 400 else 'short'}"
            for paragraph in paragraphs
        ]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows[:48]]) + "\n", encoding="utf-8")
    (folder / "bin").mkdir()
    (folder / "bin" / "electra").write_text(f'#!/bin/sh\nexec {sys.executable} -m electrakit "$@"\n')
    (folder / "bin" / "electra").chmod(0o755)
    return folder


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}


@pytest.mark.long
def test_the_commands_and_the_python_of_the_documents_run_as_they_stand(folder, subtests):
    """One reader goes through the documents in order. What an earlier one has done is not done again."""
    done: set[str] = set()
    for name in RUN:
        document = PROJECT / name
        with subtests.test(document=name):
            for line in "\n".join(blocks(document, "sh")).replace("\\\n", " ").splitlines():
                command = re.sub(r"\s+# .*", "", line)
                if command not in done and not command.startswith("make "):  # the next tests look at these
                    run_command(command, folder)
                    done.add(command)
            code = "\n".join(blocks(document, "python"))  # a document's pieces of Python follow each other
            if code:
                (folder / "example.py").write_text(code, encoding="utf-8")
                run([sys.executable, "example.py"], folder)


def run_command(command: str, folder: Path) -> None:
    if command.startswith("electra play"):
        serve(command, folder)
        return
    # Nothing is changed but how long it may train. On a corpus this small, and with a run this short, the doctor may be serious:
    # that is its answer, not a failure.
    command = re.sub(r"--budget \S+", "--budget 2s", command)
    run(["bash", "-c", command], folder, may_be_serious=command.startswith("electra doctor"))


def run(command: list[str], folder: Path, may_be_serious: bool = False) -> None:
    ended = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert ended.returncode == 0 or (may_be_serious and ended.returncode == 1), (
        f"{command[-1]}\n{ended.stdout}\n{ended.stderr}"
    )


def serve(command: str, folder: Path) -> None:
    """A server: start it at a free port, ask for its page, and stop it."""
    with subprocess.Popen(
        [*command.split(), "--port", "0"], cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = next(match[0] for line in process.stdout if (match := re.search(r"http://[\w.:\[\]]+", line)))
            assert "<html" in ask(address)
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=HANG) in (0, 130)


def ask(address: str) -> str:
    def answer() -> bool:
        with contextlib.suppress(ConnectionError):
            answers.append(urllib.request.urlopen(address, timeout=HANG).read().decode())
        return bool(answers)

    answers: list[str] = []
    wait_until(answer)
    return answers[0]


def test_every_document_with_commands_to_run_is_run():
    with_commands = {
        name_of(document) for document in DOCUMENTS for language, _ in fences(document) if language in ("sh", "python")
    }
    assert with_commands <= {*RUN, *NOT_HERE}


def test_every_make_target_that_a_document_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", text_of(PROJECT / "Makefile"), re.M))
    named = {
        name
        for document in DOCUMENTS
        for block in blocks(document, "sh")
        for name in re.findall(r"^make ([\w-]+)", block, re.M)
    }
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize(
    ("target", "command", "stamp"),
    [
        ("demo", "electra demo", ".venv/installed"),
        ("test", "python -m pytest", ".venv/installed-dev"),
        ("test-long", "python -m pytest", ".venv/installed-dev"),
        ("docs", "mkdocs build --strict", ".venv/installed-dev"),
    ],
)
def test_make_runs_what_the_readme_says(target, command, stamp):
    """As make would do it, in a clean clone and where everything is there: nothing is run."""
    for setting in ([], [f"--assume-old={stamp}"]):
        done = subprocess.run(["make", "-n", *setting, target], cwd=PROJECT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert any(line.endswith(command) or f"{command} " in line for line in lines)
        assert any("pip install" in line for line in lines) == (not setting and is_to_be_set_up(stamp))
    if target == "test":
        assert all(any(tool in line for line in lines) for tool in ("ruff check", "ruff format --check", "mypy"))


def is_to_be_set_up(stamp: str) -> bool:
    """Whether the environment is missing, or older than what it is made from."""
    done = subprocess.run(["make", "-q", stamp], cwd=PROJECT)
    return done.returncode != 0


def test_contributing_names_every_folder_and_only_files_that_exist():
    rows = "\n".join(re.findall(r"^\| `.*$", text_of(PROJECT / "CONTRIBUTING.md"), re.M))
    named = set(re.findall(r"`(electrakit/[\w/]+/)`", rows))
    package = PROJECT / "electrakit"
    folders = {f"{name_of(path.parent)}/" for path in package.rglob("__init__.py") if path.parent != package}
    assert named == folders
    for name in re.findall(r"`((?:electrakit|tests|docs)/[\w/]+\.\w+)`", text_of(PROJECT / "CONTRIBUTING.md")):
        assert (PROJECT / name).exists(), name


def test_ci_runs_the_readmes_test_command():
    assert "make test\nmake test-long" in text_of(PROJECT / ".ci" / "run")
    assert os.access(PROJECT / ".ci" / "run", os.X_OK)
    assert shutil.which("make")

"""The demo, as `make demo` runs it."""

import re
import subprocess
import sys

import pytest

from electrakit import Batches, load_tokenizer
from electrakit.cli.demo import MISPLACED, write_corpus
from electrakit.data.read import docstrings
from electrakit.runs.files import read_metrics
from tests.helpers.processes import HANG

# As `python -m electrakit demo`, but the installed packages, thousands of files, are left out of the text.
DEMO = """
import sys, sysconfig
stdlib = sysconfig.get_path("stdlib")
sysconfig.get_path = lambda name: stdlib
from electrakit.cli.main import main
main(["demo", "--budget", sys.argv[1]])
"""


@pytest.mark.long
def test_the_demo_walks_from_text_to_a_trained_pair_and_a_second_time_does_nothing(tmp_path):
    for number in range(2):
        command = [sys.executable, "-c", DEMO, "15s"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr
        for shown in ("generator: loss", "Return the ____ of the file.", "banana", "electra pretrain electra_small"):
            assert shown in done.stdout
        assert re.search(
            r"of the banana as a string \. +[0-9.]+%  (not )?higher\n.* of the file as a string", done.stdout
        )
        for number_of_swaps in (3, 5):
            assert re.search(rf"[0-5] of {number_of_swaps} odd words got a higher probability", done.stdout)
        assert ("is there already" in done.stdout and "finished already" in done.stderr) == bool(number)
    assert "electra play demo/hf" in done.stdout and "<svg" in (tmp_path / "demo" / "report.html").read_text()
    assert {"config.json", "model.safetensors", "README.md", "generator"} <= {
        path.name for path in (tmp_path / "demo" / "hf").iterdir()
    }
    batches = Batches(tmp_path / "demo" / "shards", 8)
    assert batches.num_rows > 1000
    assert 5000 < len(load_tokenizer(tmp_path / "demo" / "tokenizer").vocabulary) <= 8000  # less text, fewer pieces
    valid = [line for line in read_metrics(tmp_path / "demo" / "run") if line["split"] == "valid"]
    assert valid[-1]["mlm_loss"] < valid[0]["mlm_loss"]


def test_the_corpus_has_as_much_text_as_wanted_from_mixed_packages_and_is_the_same_each_time(tmp_path, monkeypatch):
    files = []
    for package in "abcd":
        for number in range(40):
            files.append(tmp_path / package / f"{number}.py")
            files[-1].parent.mkdir(exist_ok=True)
            prose = f"This is the text of module number {number} of the package that we call {package}."
            code = "value = 1\n" * (200 if number % 2 else 0)
            files[-1].write_text(
                f'"""{prose}\n\nThis sentence stands in every module and it is kept only once."""\n{code}'
            )
    monkeypatch.setattr(docstrings, "python_files", lambda: files)
    for name, workers in (("one.txt", 1), ("two.txt", 2)):
        write_corpus(tmp_path / name, 2000, workers)
    text = (tmp_path / "one.txt").read_text()
    assert text == (tmp_path / "two.txt").read_text()
    assert 2000 <= len(text.replace("\n", "")) < 2200 and text.count("This sentence stands") == 1
    assert all(f"we call {package}." in text for package in "abcd")
    assert "module number 1 " not in text  # hardly any of that file is prose


def test_misplaced_words_are_as_common_as_the_right_ones():
    """Else the demo would show how well the model knows rare words, and nothing about context."""
    assert sorted(swap.odd for swap in MISPLACED) == sorted(swap.right for swap in MISPLACED)
    assert all(swap.odd != swap.right for swap in MISPLACED)

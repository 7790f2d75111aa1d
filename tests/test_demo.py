"""The demo, as `make demo` runs it."""

import re
import subprocess
import sys

import pytest

from electrakit import Batches, load_tokenizer
from electrakit.demo import MISPLACED
from electrakit.train.run_folder import read_metrics

# As `python -m electrakit demo`, but the installed packages are left out of the text: thousands of files that are read twice.
DEMO = """
import sys, sysconfig
stdlib = sysconfig.get_path("stdlib")
sysconfig.get_path = lambda name: stdlib
from electrakit.cli import main
main(["demo", "--budget", sys.argv[1]])
"""


@pytest.mark.slow
def test_the_demo_walks_from_text_to_a_trained_pair_and_a_second_time_does_nothing(tmp_path):
    for number in range(2):
        command = [sys.executable, "-c", DEMO, "15s"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        for said in ("generator: loss", "Return the ____ of the file.", "banana", "electra pretrain electra_small"):
            assert said in done.stdout
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
    valid = [line for line in read_metrics(tmp_path / "demo" / "run" / "metrics.jsonl") if line["split"] == "valid"]
    assert valid[-1]["mlm_loss"] < valid[0]["mlm_loss"]


def test_misplaced_words_are_as_common_as_the_right_ones():
    """Else the demo would show how well the model knows rare words, and nothing about context."""
    assert sorted(swap.odd for swap in MISPLACED) == sorted(swap.right for swap in MISPLACED)
    assert all(swap.odd != swap.right for swap in MISPLACED)

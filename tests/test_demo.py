"""The demo, as `make demo` runs it."""

import subprocess
import sys

import pytest

from electrakit import Batches, load_tokenizer


@pytest.mark.slow
def test_the_demo_walks_from_text_to_shards_and_a_second_time_does_nothing(tmp_path):
    for number in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "electrakit", "demo"], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "electra prepare corpus/" in done.stdout
        assert ("is there already" in done.stdout and "finished already" in done.stderr) == bool(number)
    batches = Batches(tmp_path / "demo" / "shards", 8)
    assert batches.num_rows > 3000
    assert len(load_tokenizer(tmp_path / "demo" / "tokenizer").vocabulary) == 8000

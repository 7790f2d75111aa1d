"""Runs that are killed without warning, by real processes: what they leave is the same as if nothing had happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig
from electrakit.train.checkpoint import find_damage
from tests.helpers.processes import HANG
from tests.helpers.runs import assert_same

FILES = ("config.json", "model.safetensors", "tokenizer.json")
KILLS = Path(__file__).parents[1] / "helpers" / "kills.py"


def run_kills(config: PretrainConfig, how: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    command = [sys.executable, str(KILLS), str(tmp_path / "config.json"), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG)


@pytest.mark.promise("Training", "SIGKILL at random moments, again and again", "the same bits at the end, flat memory")
@pytest.mark.long
def test_killed_at_random_moments_the_run_ends_with_the_same_bits(tiny, tmp_path, trials):
    num_kills = 5 * trials.number  # 100 in make reliability
    settings = {"steps": 4 * num_kills + 1, "save_every": 2, "micro_batch": 4, "valid_every": 20}
    killed = run_kills(tiny("killed", **settings), str(num_kills), tmp_path)
    assert killed.returncode == 0, killed.stderr
    peaks = list(map(int, killed.stdout.split()))
    assert len(peaks) == num_kills + 1
    assert_same(pretrain(tiny("killed", **settings)), pretrain(tiny("whole", **settings)))
    assert {path.name for path in (tmp_path / "killed" / "checkpoints").glob(".*")} == set()  # no half folder is left
    half = len(peaks) // 2
    assert max(peaks[half:]) < 1.05 * max(peaks[:half])
    trials.count(num_kills)


@pytest.mark.promise(
    "Training", "SIGKILL before every write, sync and rename of a save", "the same bits at the end, nothing left over"
)
@pytest.mark.long
def test_killed_at_every_write_of_a_save_the_run_ends_with_the_same_bits(tiny, tmp_path, trials):
    settings = {"steps": 2, "save_every": 1, "micro_batch": 8, "keep_last": 1, "valid_every": 100, "valid_rows": 8}
    killed = run_kills(tiny("killed", **settings), "writes", tmp_path)
    assert killed.returncode == 0, killed.stderr
    said = killed.stdout.splitlines()
    assert len(said) > 60
    for folder in (".step_0000001/", ".step_0000002/"):  # before each file of both saves
        files = {
            line.partition(folder)[2] for line in said if line.startswith(("open", "serialize_file")) and folder in line
        }
        assert {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"} <= files
        assert {f"{name}/{file}" for name in ("discriminator", "generator") for file in FILES} <= files
        assert any(line.startswith("rename") and line.endswith(folder[:-1]) for line in said)
    run = pretrain(tiny("killed", **settings))
    assert_same(run, pretrain(tiny("whole", **settings)))
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {"step_0000002"}  # no half folder is left
    trials.count(len(said))


@pytest.mark.promise("Training", "SIGKILL after the last save", "the missing validation is made")
def test_a_kill_right_after_the_last_save_loses_no_validation(tiny):
    """The last step is due for a checkpoint and not for a validation."""
    settings = {"steps": 6, "save_every": 3, "valid_every": 100}
    config = tiny("killed", **settings)
    pid = os.fork()
    if not pid:
        torch.set_num_threads(1)
        pretrain(config, on_checkpoint=lambda path: os.kill(os.getpid(), 9) if path.name.endswith("6") else None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    run = pretrain(config)
    assert_same(run, pretrain(tiny("whole", **settings)))
    assert [line["step"] for line in run.metrics("valid")] == [0, 6]
    assert run.best_checkpoint == run.checkpoint


def test_what_a_kill_left_of_a_file_of_tensors_is_removed(tiny):
    """safetensors writes each file under a name of its own first."""
    config = tiny(steps=4, save_every=2, valid_every=100)
    folder = pretrain(config, stop_after=2).path / "checkpoints"
    for name in (".step_0000003", ".step_0000004"):
        (folder / name).mkdir()
        (folder / name / ".tmpa1B2c3").write_bytes(b"half")
    pretrain(config)
    assert {path.name for path in folder.iterdir()} == {"step_0000002", "step_0000004"}


KILLED_BEFORE_ITS_LAST_RENAME = """
import json, os, sys
from pathlib import Path
from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig

rename = os.rename

def kill(source, target):
    if Path(source).name == ".step_0000003":  # the old one is not in its place any more
        os.kill(os.getpid(), 9)
    rename(source, target)

os.rename = kill
pretrain(PretrainConfig.from_json(json.loads(sys.argv[1])))
"""


@pytest.mark.promise("Training", "SIGKILL while a checkpoint is replaced", "the old one is put back")
@pytest.mark.long
def test_a_kill_while_a_checkpoint_is_replaced_loses_nothing(tiny):
    """It was stopped where it is now to end: only a validation is missing, and its checkpoint is written anew."""
    stopped = pretrain(tiny(valid_every=100), stop_after=3)
    config = tiny(steps=3, valid_every=100)
    command = [sys.executable, "-c", KILLED_BEFORE_ITS_LAST_RENAME, json.dumps(config.to_json())]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert killed.returncode == -9, killed.stderr
    assert not stopped.checkpoint.exists()
    run = pretrain(config)
    assert [line["step"] for line in run.metrics("valid")] == [0, 3]
    assert run.best_checkpoint == run.checkpoint == stopped.checkpoint
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {"step_0000003"}


@pytest.mark.promise(
    "Training", "full disk during a save", "one line, earlier checkpoints untouched, the same bits after a restart"
)
@pytest.mark.long
def test_a_full_disk_is_told_and_leaves_earlier_checkpoints_alone(tiny, tmp_path):
    config = tiny(steps=8, save_every=4, valid_every=100)
    pretrain(config, stop_after=4)
    full = run_kills(config, "full", tmp_path)
    assert full.returncode == 0, full.stderr
    assert (
        "UserError: cannot write the checkpoint" in full.stderr and "earlier checkpoints are untouched" in full.stderr
    )
    folder = config.run / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {"step_0000004"}
    assert find_damage(folder / "step_0000004") is None
    assert_same(pretrain(config), pretrain(tiny("whole", steps=8, save_every=4, valid_every=100)))

"""What a run writes about itself: each step once."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from electrakit import pretrain
from electrakit.common import progress
from electrakit.common.errors import UserError
from electrakit.common.words import format_clock
from electrakit.runs.files import read_metrics
from electrakit.train import log
from electrakit.train.log import TerminalLine
from tests.helpers.processes import HANG


def show_on(screen: Console, monkeypatch) -> None:
    for module in (log, progress):
        monkeypatch.setattr(module, "console", screen)


def test_every_step_is_logged_once_also_after_stops(tiny):
    config = tiny(log_every=2)
    for step in (3, 7, 9):
        pretrain(config, stop_after=step)
    run = pretrain(config)
    assert [line["step"] for line in run.metrics()] == [2, 4, 6, 8, 10, 12]
    assert [line["step"] for line in run.metrics("valid")] == [0, 6, 12]
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/mlm_loss")] == [2, 4, 6, 8, 10, 12]
    assert [event.step for event in events.Scalars("valid/disc_auc")] == [0, 6, 12]


def test_a_tensorboard_folder_that_is_gone_is_made_again_from_the_log(tiny):
    run = pretrain(tiny(), stop_after=8)
    shutil.rmtree(run.path / "tensorboard")
    pretrain(tiny())
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/num_skipped")] == [4, 8, 12]
    for name, split in {"train/mlm_loss": "train", "valid/disc_auc": "valid"}.items():
        logged = [line[name.partition("/")[2]] for line in run.metrics(split)]
        assert [event.value for event in events.Scalars(name)] == pytest.approx(logged)


@pytest.mark.promise("Training", "SIGKILL while a line of metrics.jsonl is written", "the line is written again")
def test_a_line_that_a_kill_cut_off_is_no_line(tiny):
    config = tiny(log_every=1)
    run = pretrain(config, stop_after=5)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, "split": "train", "loss": 1.0}) + '\n{"step": 7, "spl')
    run = pretrain(config)
    assert [line["step"] for line in run.metrics()] == list(range(1, 13))


def test_lines_that_a_full_disk_does_not_take_wait_for_the_checkpoint(tmp_path, tiny):
    lines = log.Log(tmp_path, tiny())
    lines.resume_from(None)
    lines.write("train", 1, {"loss": 1.0})
    good = lines.file
    with Path("/dev/full").open("ab", buffering=0) as lines.file:
        lines.write("train", 2, {"loss": 1.0})
        lines.write("train", 3, {"loss": 1.0})
        with pytest.raises(
            UserError, match=r"metrics.jsonl \(No space left on device\); earlier checkpoints are untouched"
        ):
            lines.sync()
    lines.file = good
    lines.sync()
    lines.close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_terminal_gets_one_live_line_and_a_file_plain_ones(monkeypatch):
    metrics = {
        "loss": 12.3456,
        "mlm_loss": 4.5,
        "disc_loss": 0.157,
        "gen_acc": 0.25,
        "disc_acc": 0.9,
        "tokens_per_second": 12345.6,
    }
    shown = {}
    for is_terminal in (True, False):
        screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=160, highlight=False)
        show_on(screen, monkeypatch)
        line = TerminalLine(100)
        line.advance(10, 3725.0)
        line.show("train", 10, metrics)
        line.show("valid", 10, {"loss": 11.0, "disc_auc": 0.87})
        line.close()
        shown[is_terminal] = screen.file.getvalue()
    assert (
        "step 10 of 100  loss 12.346  mlm 4.500  disc 0.1570  tok/s 12,346  gen acc 0.250  disc acc 0.900  1:02:05 left"
        in shown[False]
    )
    assert "step 10  valid: loss 11.000  auc 0.870" in shown[False]
    assert "\x1b" not in shown[False] and "\x1b" in shown[True]
    assert "step 10/100" in shown[True] and "1:02:05" in shown[True]


def test_durations():
    assert [format_clock(seconds) for seconds in (None, 5, 65, 3725)] == ["?", "0:05", "1:05", "1:02:05"]


METRICS = {
    "loss": 12.3456,
    "mlm_loss": 4.5678,
    "disc_loss": 0.15678,
    "disc_auc": 0.8765,
    "tokens_per_second": 123456.7,
    "gen_acc": 0.2567,
    "disc_acc": 0.9123,
    "mfu": 0.4321,
}
MUST = ("loss 12.35", "mlm 4.57", "disc 0.157", "auc 0.88", "tok/s 123.5k", " left")


@pytest.mark.parametrize(("step", "num_steps", "left"), [(1000, 3000, 100.0), (123_456, 1_000_000, 83_000.0)])
@pytest.mark.parametrize(
    ("width", "also"),
    [
        (80, ()),
        (100, ("gen acc 0.26",)),
        (120, ("gen acc 0.26", "disc acc 0.91")),
        (140, ("disc acc 0.91", "mfu 0.43", "000 loss")),
    ],
)
def test_the_live_line_shows_what_there_is_room_for(monkeypatch, width, also, step, num_steps, left):
    screen = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    show_on(screen, monkeypatch)
    line = TerminalLine(num_steps)
    line.show("train", step, METRICS)
    line.show("valid", step, {"loss": 11.0, "disc_auc": 0.8765})
    line.advance(step, left)
    line.live.refresh()
    line.close()
    shown = screen.file.getvalue()
    for part in (f"step {step:,}", *MUST, *also):
        assert part in shown, part
    screen.file = io.StringIO()
    screen.print(line.render())
    [text] = screen.file.getvalue().splitlines()
    assert Text.from_ansi(text).cell_len <= width


def test_the_last_validation_is_shown_after_a_resume_too(tiny, monkeypatch):
    stopped = pretrain(tiny(), stop_after=7)
    auc = stopped.metrics("valid")[-1]["disc_auc"]
    resumed = log.Log(stopped.path, tiny())
    resumed.resume_from(7, 6)
    resumed.close()
    screen = Console(file=io.StringIO(), width=100)
    show_on(screen, monkeypatch)
    screen.print(resumed.line.render())
    assert f"auc {auc:.2f}" in screen.file.getvalue()


FAKE_WANDB = """
import json, os
from types import SimpleNamespace

util = SimpleNamespace(generate_id=lambda: os.urandom(4).hex())

def init(**settings):
    note("init", **{name: settings[name] for name in ("project", "id", "resume")})
    return SimpleNamespace(log=lambda metrics, step: note("log", step=step, names=sorted(metrics)), finish=lambda: note("finish"))

def note(what, **about):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps({"what": what, **about}) + "\\n")
"""


@pytest.mark.long
def test_wandb_gets_every_metric_once_and_a_resumed_run_is_the_same_run(tiny, tmp_path):
    (tmp_path / "wandb.py").write_text(FAKE_WANDB)
    (tmp_path / "settings.json").write_text(json.dumps(tiny(wandb="my-project").to_json()))
    code = """
import json, sys
from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig
pretrain(PretrainConfig.from_json(json.load(open(sys.argv[1]))), stop_after=int(sys.argv[2]))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NOTES": str(tmp_path / "notes.jsonl")}
    for step in ("7", "12"):
        command = [sys.executable, "-c", code, str(tmp_path / "settings.json"), step]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr
    notes = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    starts = [note for note in notes if note["what"] == "init"]
    assert len(starts) == 2 and starts[0] == starts[1]
    assert (starts[0]["project"], starts[0]["resume"]) == ("my-project", "allow") and len(starts[0]["id"]) == 8
    assert sum(note["what"] == "finish" for note in notes) == 2
    logged = [(name, note["step"]) for note in notes if note["what"] == "log" for name in note["names"]]
    assert len(logged) == len(set(logged))
    assert [step for name, step in logged if name == "train/mlm_loss"] == [4, 8, 12]
    assert [step for name, step in logged if name == "valid/disc_auc"] == [0, 6, 12]

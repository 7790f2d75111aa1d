"""Real processes whose terminal, reader or disk for messages goes away: a run goes on, or saves and stops."""

import json
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from electrakit.runs.files import read_metrics
from tests.helpers.processes import HANG, wait_until


def command(shards: Path, run: Path, *settings: str) -> list[str]:
    start = [sys.executable, "-m", "electrakit", "pretrain", "tiny", "--data", str(shards), "--run", str(run)]
    return [*start, "--log-every", "1", "--valid-rows", "4", *settings]


def status(run: Path) -> Any:
    return json.loads((run / "status.json").read_text())


@pytest.mark.promise("Terminals", "terminal closed (SIGHUP)", "saved, exit code 75")
@pytest.mark.long
def test_a_closed_terminal_saves_and_stops_with_75(shards, tmp_path):
    """The shell's end of a terminal is closed: SIGHUP comes, and nothing can be written there any more."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(shards, tmp_path / "run", "--steps", "100000"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # makes it the terminal of the session, whose end sends SIGHUP
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    os.close(theirs)
    wait_until(lambda: any(line["split"] == "train" for line in read_metrics(tmp_path / "run")), process)
    os.close(ours)
    assert process.wait(timeout=HANG) == 75
    step = status(tmp_path / "run")["step"]
    assert step > 0 and (tmp_path / "run" / "checkpoints" / f"step_{step:07d}" / "manifest.json").exists()


@pytest.mark.promise("Terminals", "reader of the pipe gone, no output", "training goes on")
@pytest.mark.long
def test_a_run_whose_reader_has_gone_or_that_has_no_output_goes_on_to_its_end(shards, tmp_path):
    for name, ending in {"reader": "2>&1 | true; exit ${PIPESTATUS[0]}", "nothing": ">&- 2>&- <&-"}.items():
        words = " ".join(command(shards, tmp_path / name, "--steps", "20"))
        done = subprocess.run(["bash", "-c", f"{words} {ending}"], capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0 and not done.stderr
        assert status(tmp_path / name) == {"step": 20, "is_complete": True}
        steps = [line["step"] for line in read_metrics(tmp_path / name) if line["split"] == "train"]
        assert steps == list(range(1, 21))


@pytest.mark.promise("Terminals", "full disk for messages", "training goes on")
@pytest.mark.long
def test_a_full_disk_for_messages_does_not_end_a_run(shards, tmp_path):
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            command(shards, tmp_path / "run", "--steps", "5"), stdout=full, stderr=full, timeout=HANG
        )
    assert process.returncode == 0 and status(tmp_path / "run")["is_complete"]


@pytest.mark.promise("Terminals", "limit of CPU time (SIGXCPU)", "saved, exit code 75")
@pytest.mark.long
def test_a_limit_of_cpu_time_saves_and_stops(shards, tmp_path):
    process = subprocess.Popen(
        command(shards, tmp_path / "run", "--steps", "1000000"), stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: any(line["split"] == "train" for line in read_metrics(tmp_path / "run")), process)
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (1, resource.RLIM_INFINITY))  # it has used more already
    said = process.communicate(timeout=HANG)[1]
    assert process.returncode == 75, said
    assert "start the same command again to resume" in said and "Traceback" not in said


@pytest.mark.promise("Terminals", "signals to other verbs", "exit code 128 + n, and how to continue")
@pytest.mark.long
def test_another_verb_leaves_tidily_and_says_how_to_go_on(shards, tmp_path):
    """prepare, stopped where it reads: a pipe that stays open."""
    os.mkfifo(tmp_path / "text.txt")
    start = [sys.executable, "-m", "electrakit", "prepare", str(tmp_path / "text.txt"), "--workers", "1"]
    start += ["--tokenizer", str(shards / "tokenizer"), "--length", "32", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(start, stderr=subprocess.PIPE, text=True)
    with (tmp_path / "text.txt").open("w"):  # returns when the other end is opened, too
        process.send_signal(signal.SIGHUP)
        said = process.communicate(timeout=HANG)[1]
    assert process.returncode == 128 + signal.SIGHUP, said
    assert "stopped by SIGHUP; start the same command again" in said and "Traceback" not in said

"""finetune, glue and search as real processes that get signals of every kind: they leave tidily, and the same command goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from electrakit.train.signals import SIGNALS
from tests.helpers.commands import open_commands
from tests.helpers.processes import HANG, children_of, wait_until
from tests.helpers.tiny_glue import write_glue, write_model

STOPS = (*SIGNALS, signal.SIGKILL)
NUM_RUNS = len(STOPS) + 1
FAST = ("--length", 32, "--device", "cpu", "--threads", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stops")
    write_glue(folder / "glue", num_train=24, num_dev=8)
    write_model(folder / "model")
    return folder


@pytest.fixture(scope="module")
def run():
    with open_commands() as run:
        yield run


def command(verb, folder, out, number, workers=1):
    """So many runs of one task, or trials of one search."""
    task = ("--tasks", "cola") if verb == "glue" else ("--task", "cola")
    tried = ("--epochs-tried", 1, 2, "--batch-sizes", 8, "--together", 3, "--trials", number)
    more = tried if verb == "search" else ("--epochs", 1, "--batch-size", 8, "--seeds", number)
    start = (verb, folder / "model", *task, "--data", folder / "glue", "--out", out, "--workers", workers)
    return tuple(map(str, (*start, *FAST, *more)))


def finished(out):
    return {path: path.stat().st_mtime_ns for path in out.rglob("seed_*.json")}


def without_times(value):
    """What results.json holds, but for seconds and paths."""
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name not in ("seconds", "out", "files")}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.mark.promise(
    "Fine-tuning",
    "signals of every kind and SIGKILL to finetune, glue and search",
    "exit code 128 + n and one line; finished runs stay, the same result after a restart",
    cases=len(STOPS),
)
@pytest.mark.long
@pytest.mark.parametrize("verb", ["finetune", "glue", "search"])
def test_stopped_in_any_run_the_result_is_the_same(run, folder, tmp_path, verb):
    """Each start finishes one run and is stopped in the next."""
    start = command(verb, folder, tmp_path / "stopped", NUM_RUNS)
    for number in STOPS:
        before = finished(tmp_path / "stopped")
        done = run(*start, signal=(number, 2))
        if number == signal.SIGKILL:
            assert done.code == -number
        else:
            assert done.code == 128 + number, done.said
            assert done.said.count("electra: stopped") == 1 and "start the same command again" in done.said
        assert "Traceback" not in done.said
        after = finished(tmp_path / "stopped")
        assert len(after) == len(before) + 1 and after.items() >= before.items()
    done = run(*start)
    assert done.code == 0, done.said
    assert len(finished(tmp_path / "stopped")) == NUM_RUNS
    assert run(*command(verb, folder, tmp_path / "whole", NUM_RUNS)).code == 0
    stopped, whole = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("stopped", "whole"))
    assert without_times(stopped) == without_times(whole)
    assert not [path for path in (tmp_path / "stopped").rglob(".*") if path.name != ".lock"]


WAYS = [
    ("finetune", signal.SIGTERM, False),
    ("glue", signal.SIGHUP, True),
    ("search", signal.SIGINT, True),
    ("finetune", signal.SIGKILL, False),
    ("glue", signal.SIGUSR1, False),
    ("search", signal.SIGTERM, True),
]
"""Verb, signal, and whether all of its processes get it, as those of a terminal do."""


@pytest.mark.promise(
    "Fine-tuning",
    "signals to finetune, glue and search with several workers",
    "no process is left; finished runs stay",
)
@pytest.mark.long
def test_workers_end_with_their_command(folder, tmp_path, trials):
    for seed in trials:
        verb, number, to_all = WAYS[seed % len(WAYS)]
        out = tmp_path / f"{seed}"
        process = subprocess.Popen(
            [sys.executable, "-m", "electrakit", *command(verb, folder, out, 500, workers=2)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        wait_until(lambda out=out: finished(out), process)
        children = children_of(process.pid)
        assert len(children) >= 2
        before = finished(out)
        (os.killpg if to_all else os.kill)(process.pid, number)
        said = process.communicate(timeout=HANG)[1]  # until all of its processes have closed it
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), said
        assert "Traceback" not in said and "Exception" not in said, said
        if number != signal.SIGKILL:
            assert said.count("electra: stopped") == 1 and "start the same command again" in said
        wait_until(lambda children=children: not any(Path(f"/proc/{child}").exists() for child in children))
        assert finished(out).items() >= before.items()
        assert all(json.loads(path.read_text()) for path in finished(out))

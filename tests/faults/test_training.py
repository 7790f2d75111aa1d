"""Faults while a run trains, in this process: signals of every kind, also during a save, jumps of the clock, no memory, many restarts."""

import gc
import os
import signal
import time
from pathlib import Path

import pytest
import torch

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.runs import layout
from electrakit.runs.files import read_metrics
from electrakit.train import checkpoint
from electrakit.train.checkpoint import find_damage
from electrakit.train.signals import SIGNALS
from tests.helpers.runs import assert_same


@pytest.mark.promise(
    "Training", "a second signal of every kind during the save", "the save ends, and the run stops", cases=len(SIGNALS)
)
@pytest.mark.long
def test_signals_during_a_save_neither_cut_nor_repeat_it(tiny, monkeypatch):
    config = tiny("run", steps=100, save_every=1, valid_every=1000, valid_rows=2, keep_last=100)
    write_manifest, number = checkpoint.write_manifest, SIGNALS[0]

    def write_and_signal(folder):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
        write_manifest(folder)

    monkeypatch.setattr(checkpoint, "write_manifest", write_and_signal)
    for step, number in enumerate(SIGNALS, start=1):  # noqa: B007  # the function above sends it
        run = ek.pretrain(config)
        assert run.step == step and not run.is_complete
        assert find_damage(run.checkpoint) is None
    monkeypatch.undo()
    assert_same(ek.pretrain(config, stop_after=9), ek.pretrain(tiny("whole", **_as(config)), stop_after=9))


def _as(config):
    return {"steps": config.steps, "save_every": 100, "valid_every": 1000, "valid_rows": 2, "keep_last": 100}


@pytest.mark.promise("Training", "the system's clock jumps by years, with --budget", "the budget is that of the work")
@pytest.mark.long
def test_jumps_of_the_clock_do_not_count_against_a_budget(tiny, monkeypatch, trials):
    real = time.time
    for seed in trials:
        jumps = iter(range(10**9))
        sign = 1 if seed % 2 else -1
        monkeypatch.setattr(time, "time", lambda jumps=jumps, sign=sign: max(1.0, real() + sign * next(jumps) * 1e7))
        config = tiny(f"run{seed}", budget="1h", steps=10**6, valid_every=10**6, save_every=10**6)
        run = ek.pretrain(config, stop_after=3)
        monkeypatch.undo()
        assert run.step == 3 and not run.is_complete
        assert 0 < read_metrics(run.path)[-1].get("seconds", 1) < 3600
        assert ek.pretrain(config, stop_after=5).step == 5


@pytest.mark.promise(
    "Training", "no memory in a step or in a save", "earlier checkpoints stay; the same bits after a restart"
)
@pytest.mark.long
@pytest.mark.parametrize("where", ["step", "save"])
def test_a_run_that_gets_no_memory_loses_nothing_that_was_saved(tiny, monkeypatch, where):
    config = tiny("run", save_every=4, valid_every=100)
    error = torch.OutOfMemoryError("not enough memory") if where == "step" else MemoryError("no memory")

    def no_memory(*_):
        raise error

    def after(path):
        name = "electrakit.train.loop.train_step" if where == "step" else "electrakit.train.checkpoint.write_manifest"
        monkeypatch.setattr(name, no_memory)

    with pytest.raises(UserError, match=r"not enough memory.*checkpoints are untouched.*--micro-batch"):
        ek.pretrain(config, on_checkpoint=after)
    monkeypatch.undo()
    assert layout.checkpoint_steps(config.run) == [4]
    assert find_damage(layout.checkpoint_path(config.run, 4)) is None
    assert_same(ek.pretrain(config), ek.pretrain(tiny("whole", save_every=4, valid_every=100)))


@pytest.mark.promise("Training", "many stops and starts of one run", "the same bits, no file left open, flat memory")
@pytest.mark.long
def test_a_soak_of_stops_and_starts_ends_with_the_same_bits(tiny, trials):
    cycles = 5 * trials.number
    settings = {"steps": cycles + 1, "save_every": 1000, "valid_every": 1000, "valid_rows": 2, "keep_last": 1}
    config = tiny("run", **settings)
    open_files, resident = [], []
    for step in range(1, cycles + 1):
        assert ek.pretrain(config, stop_after=step).step == step
        gc.collect()  # files of earlier tests, too
        open_files.append(len(list(Path("/proc/self/fd").iterdir())))
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert max(open_files[1:]) <= open_files[1]
    half = len(resident) // 2
    assert resident[-1] < 1.05 * resident[half] + 20e6
    assert_same(ek.pretrain(config), ek.pretrain(tiny("whole", **settings)))
    trials.count(cycles)

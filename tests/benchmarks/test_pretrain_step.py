"""The benchmark of a step runs as a command, and its counts agree with torch's own."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from electrakit.model.counts import useful_flops
from tests.helpers.processes import HANG

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "pretrain_step.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.fixture
def contenders(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pretrain_contenders

    return pretrain_contenders


@pytest.fixture
def workers(contenders: Any) -> Any:
    import pretrain_workers

    return pretrain_workers


@pytest.mark.long
def test_one_command_measures_ours_beside_others_and_writes_json_and_a_chart(tmp_path):
    small = {"size": "tiny", "length": 32, "batch": 4, "threads": 1, "rounds": 2, "steps": 1, "padding": 0.25}
    only = ["--only", "electrakit", "loop", "plain", "pair", "transformers-masked", "electra-pytorch"]
    options = [part for name, value in small.items() for part in (f"--{name}", str(value))]
    result = run(*options, *only, "--out", "results", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "results" / "results.json").read_text())
    rows = {row["key"]: row for row in report["contenders"]}
    assert report["failed"] == {}
    if "electra-pytorch" in report["skipped"]:
        assert "could not be installed" in report["skipped"]["electra-pytorch"]
    assert {*rows, *report["skipped"]} == set(only[1:])
    for row in report["contenders"]:
        low, high = row["range"]
        assert 0 < low <= row["examples_per_second"] <= high and len(row["rounds"]) == 2
        assert row["tokens_per_second"] == pytest.approx(24 * row["examples_per_second"])
        assert row["share_of_peak"] > 0  # and below 1, where nothing else takes the cores while the peak is measured
        # all begin with the same game: chance among 8,000 words, and 50 times a coin's
        assert row["first_loss"] == pytest.approx(math.log(8000) + 50 * math.log(2), rel=0.15)
        assert row["label"] in result.stdout
    assert rows["transformers-masked"]["memory_per_example"] > rows["plain"]["memory_per_example"]  # logits everywhere
    fastest = max(row["examples_per_second"] for row in rows.values() if row["is_peer"])
    assert rows["plain"]["times_fastest_peer"] == pytest.approx(rows["plain"]["examples_per_second"] / fastest)
    precisions = report["settings"]["precision"]
    assert set(report["waited_for_a_core"]) == {f"{key} {each}" for key in ("peak", *rows) for each in precisions}
    assert report["settings"]["padding"] == 0.25 and report["machine"]["cores"] and report["versions"]["torch"]
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "results" / "results.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("--only", "lightning"), ("--batch", "0"), ("--processes", "--threads", "1")])
def test_a_wrong_option_is_named(tmp_path, arguments):
    result = run(*arguments, folder=tmp_path)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert arguments[-1] in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("key", ["plain", "mlm"])
def test_useful_work_is_what_torch_counts(contenders, workers, key):
    settings = contenders.Settings(size="tiny", length=64, batch=3)
    config = contenders.CONTENDERS[key].config(settings)
    objective = contenders.build_objective(config, contenders.SPECIAL).train()
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        objective(workers.make_rows(settings, 0, key)).loss.backward()
    useful = settings.batch * useful_flops(replace(config, length=settings.length))
    assert counter.get_total_flops() == pytest.approx(useful, rel=0.01)


def test_useful_work_of_electra_small(contenders):
    settings = contenders.Settings()
    assert useful_flops(replace(contenders.electra_config(settings), length=128)) == pytest.approx(8.98e9, rel=0.001)


def test_rows_have_the_share_of_padding_that_is_asked_for(contenders, workers):
    for padding in (0.0, 0.25, 0.5, 0.8):
        settings = contenders.Settings(size="tiny", length=128, batch=32, padding=padding)
        ids = workers.make_rows(settings, 0, "electrakit")
        assert (ids == contenders.SPECIAL["pad"]).float().mean().item() == pytest.approx(padding, abs=0.01)
        assert ((ids == contenders.SPECIAL["sep"]).sum(-1) == 1).all()
        assert (workers.make_rows(settings, 0, "filled") != contenders.SPECIAL["pad"]).all()


def test_the_peak_of_memory_is_that_of_the_step_alone(workers):
    def step() -> None:
        torch.ones(50_000_000 // 4).add_(1)

    peak = workers.peak_memory(step)
    if peak is None:
        pytest.skip("this system does not tell the peak of a process")
    assert 45e6 < peak < 60e6
    assert workers.peak_memory(lambda: None) < 5e6  # what was there before is not counted


def test_time_without_a_core_is_seen(workers):
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not tell")
    cores = os.sched_getaffinity(0)
    core = min(cores)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, {core})
        os.sched_setaffinity(0, {core})
        before, end = workers.seconds_without_a_core(), time.monotonic() + HANG
        while workers.seconds_without_a_core() - before <= 0.2:
            assert time.monotonic() < end
    finally:
        os.sched_setaffinity(0, cores)
        for process in busy:
            process.kill()
            process.wait()

"""Runs by the clock: they end in time, and go on with what is left."""

import json
import time
from pathlib import Path

import pytest
import torch
from test_sick_runs import sick

from electrakit import pretrain


def test_before_the_first_save_its_time_follows_from_its_size(tiny, monkeypatch):
    from electrakit.train import training
    from electrakit.train.distributed import Team

    run = pretrain(tiny(steps=1))
    num_bytes = sum(path.stat().st_size for path in run.checkpoint.rglob("*.safetensors"))
    monkeypatch.setattr(training, "DISK", num_bytes / 50)
    parts = training.Training(tiny(steps=1), None, Team(torch.device("cpu")))
    parts.close()
    assert parts.seconds_of["save"] == pytest.approx(50, rel=0.1)


def test_a_budget_ends_in_time_and_the_rate_follows_the_clock(tiny):
    run = pretrain(tiny(budget="4s", log_every=1, valid_every=10**6, save_every=10**6))
    assert json.loads((run.checkpoint / "state.json").read_text())["seconds"] < 4.5  # the last validation included
    assert run.is_complete and run.step > 12  # its steps do not count
    rates = [line["lr"] for line in run.metrics()][5:]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.3 * rates[0]
    assert run.metrics()[-1]["seconds"] <= 4.5


def test_a_resumed_budget_goes_on(tiny):
    settings = {"budget": "3s", "log_every": 1}
    first = pretrain(tiny(**settings), stop_after=4)
    used = json.loads((first.checkpoint / "state.json").read_text())["seconds"]
    second = pretrain(tiny(**settings))
    assert second.is_complete
    assert next(line["seconds"] for line in second.metrics() if line["step"] == 5) >= used
    assert second.metrics()[-1]["seconds"] <= 3.5
    assert pretrain(tiny(**settings)).step == second.step  # it is used up


def test_the_clock_goes_on_when_the_run_goes_back(tiny, capfd):
    """What was done since the checkpoint is lost, the time that it took is not there again."""
    begins = []

    def tell(path: Path) -> None:
        begins.append(time.monotonic() - json.loads((path / "state.json").read_text())["seconds"])
        if len(begins) == 1:
            time.sleep(2)  # after the checkpoint that the run goes back to

    config = tiny(budget="6s", micro_batch=8, valid_every=10**6, save_every=5)
    run = pretrain(config, sick(config, [6, 7, 8]), on_checkpoint=tell)
    assert "up to step 9: going back" in capfd.readouterr().err
    assert run.is_complete and len(begins) > 2
    assert max(begins) - min(begins) < 1


def test_a_spent_budget_stays_spent_and_a_larger_one_goes_on(tiny):
    settings = {"valid_every": 10**6, "save_every": 10**6, "on_checkpoint": "sleep 1"}
    first = pretrain(tiny(budget="2s", **settings))
    assert pretrain(tiny(budget="2s", **settings)).step == first.step
    assert pretrain(tiny(budget="5s", **settings)).step > first.step

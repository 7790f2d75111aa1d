"""Runs with a time budget: they end in time, and a resumed run has the rest of the budget."""

import json
from pathlib import Path

import pytest
import torch

from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig
from electrakit.runs.files import PretrainRun
from electrakit.train import state
from tests.helpers.sick_objective import Sick, sick

SECONDS = 0.1  # of a forward pass


class Clock:
    """Time that passes with the work that is done, however fast the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def timed(self, config: PretrainConfig, bad_steps: tuple[int, ...] = ()) -> Sick:
        """An objective that takes time: a step has one forward pass, a validation two."""
        objective = sick(config, bad_steps)
        objective.register_forward_pre_hook(lambda *_: self.wait(SECONDS))
        return objective

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(state, "time", clock)
    return clock


def seconds_of(run: PretrainRun) -> float:
    return json.loads((run.checkpoint / "state.json").read_text())["seconds"]


def test_before_the_first_save_its_time_follows_from_its_size(tiny, monkeypatch):
    from electrakit.train.distributed import ProcessGroup

    run = pretrain(tiny(steps=1))
    num_bytes = sum(path.stat().st_size for path in run.checkpoint.rglob("*.safetensors"))
    monkeypatch.setattr(state, "DISK_SPEED", num_bytes / 50)
    parts = state.TrainState(tiny(steps=1), None, ProcessGroup(torch.device("cpu")))
    parts.close()
    assert parts.seconds_of["save"] == pytest.approx(50, rel=0.1)


def test_a_budget_ends_in_time_and_the_rate_follows_the_clock(tiny, clock):
    config = tiny(budget="4s", micro_batch=8, log_every=1, valid_every=10**6, save_every=10**6)
    run = pretrain(config, clock.timed(config))
    # The last validation included; of the first save it is known only that it may take a second.
    assert 2.9 < seconds_of(run) <= 3 + SECONDS
    assert run.is_complete and run.step > 12  # its steps do not count
    rates = [line["lr"] for line in run.metrics()][5:]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.1 * rates[0]


@pytest.mark.promise("Training", "`--budget` and a stop", "the rest of the budget remains")
def test_a_resumed_run_has_the_rest_of_its_budget(tiny, clock):
    config = tiny(budget="3s", micro_batch=8, log_every=1)
    used = seconds_of(pretrain(config, clock.timed(config), stop_after=4))
    clock.wait(100)  # between two runs
    second = pretrain(config, clock.timed(config))
    assert second.is_complete
    assert next(line["seconds"] for line in second.metrics() if line["step"] == 5) == pytest.approx(used + SECONDS)
    assert second.metrics()[-1]["seconds"] <= 3 + SECONDS
    assert pretrain(config, clock.timed(config)).step == second.step  # it is used up


@pytest.mark.promise("Training", "`--budget` and a return to a checkpoint", "the budget is not exceeded")
def test_the_clock_is_not_set_back_when_the_run_returns_to_a_checkpoint(tiny, clock, capfd):
    """What was done since the checkpoint is lost, the time that it took is not there again."""
    begins = []

    def tell(path: Path) -> None:
        begins.append(clock.now - json.loads((path / "state.json").read_text())["seconds"])
        if len(begins) == 1:
            clock.wait(2)  # after the checkpoint that the run returns to

    config = tiny(budget="6s", micro_batch=8, valid_every=10**6, save_every=5)
    run = pretrain(config, clock.timed(config, (6, 7, 8)), on_checkpoint=tell)
    assert "up to step 9: returning to the last checkpoint" in capfd.readouterr().err
    assert run.is_complete and len(begins) > 2
    assert begins == pytest.approx([begins[0]] * len(begins), rel=0, abs=1e-6)


def test_a_spent_budget_stays_spent_and_with_a_larger_one_the_run_is_resumed(tiny, clock, monkeypatch):
    """Also one that ended early, for a save that was thought to take long."""

    def last_step(budget: str) -> int:
        config = tiny(budget=budget, micro_batch=8, valid_every=10**6, save_every=10**6)
        return pretrain(config, clock.timed(config)).step

    with monkeypatch.context() as changed:
        changed.setattr(state, "DISK_SPEED", 1)
        first = last_step("2s")
    assert last_step("2s") == first < last_step("4s")

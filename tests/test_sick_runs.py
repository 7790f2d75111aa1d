"""Runs whose loss or gradient is not a number: steps are skipped and counted, and three in a row go back."""

import math
from collections.abc import Iterable

import pytest
import torch
from test_loop import figures, weights
from torch import nn

import electrakit as ek
from electrakit import pretrain
from electrakit.errors import UserError
from electrakit.objective.build import build_objective
from electrakit.objective.output import Output
from electrakit.objective.randomness import row_keys


class Sick(nn.Module):
    """An objective whose loss is no number for some rows, or for some draws: a function of its input, as a real sickness is."""

    def __init__(self, inner: nn.Module, bad: set[int]) -> None:
        super().__init__()
        self.inner, self.bad = inner, bad

    def forward(self, ids: torch.Tensor, draws: torch.Tensor) -> Output:
        output = self.inner(ids, draws)
        is_bad = int(draws[0, 0]) in self.bad or int(ids.sum()) in self.bad
        return output._replace(loss=output.loss * math.nan) if self.training and is_bad else output


def sick(config: ek.presets.PretrainConfig, steps: Iterable[int], of_rows: bool = False) -> Sick:
    """Sick at these steps, counted from 0; `of_rows`: because of the rows, not because of what is drawn."""
    assert config.data is not None
    batches = ek.Batches(config.data, config.batch_size, seed=config.seed)
    keys = {int(row_keys(config.seed, step, batches.sample_numbers(step))[0, 0]) for step in steps}
    sums = {int(batches(step).sum()) for step in steps}
    torch.manual_seed(0)
    return Sick(build_objective(config, {"pad": 0, "cls": 2, "sep": 3, "mask": 4}), sums if of_rows else keys)


def test_a_step_without_a_number_is_skipped_and_counted(tiny):
    config = tiny(micro_batch=8, log_every=1, steps=6)
    run = pretrain(config, sick(config, [2, 4]))
    assert run.is_complete
    assert [line["num_skipped"] for line in run.metrics()] == [0, 0, 1, 1, 2, 2]
    assert all(torch.isfinite(value).all() for value in weights(run).values())
    assert "loss" not in run.metrics()[2] and "loss" in run.metrics()[3]


def test_three_in_a_row_go_back_once_and_then_stop(tiny, capfd):
    config = tiny(micro_batch=8, steps=12)
    run = pretrain(config, sick(config, [6, 7, 8]))  # other draws help
    assert run.is_complete
    assert "going back" in capfd.readouterr().err
    steps = [(line["split"], line["step"]) for line in figures(run)]
    assert len(steps) == len(set(steps))

    config = tiny("hopeless", micro_batch=8, steps=12)
    with pytest.raises(UserError, match=r"not finite for 3 steps in a row.*step_0000006 did not help.*lower optim\.lr"):
        pretrain(config, sick(config, range(6, 12), of_rows=True))
    config = tiny("at once", micro_batch=8, steps=12)
    with pytest.raises(UserError, match="no checkpoint to go back to"):
        pretrain(config, sick(config, range(12), of_rows=True))


def test_skipped_steps_are_counted_over_a_stop(tiny, capfd):
    """Three in a row are three in a row, also when the run was stopped between them."""
    for stop in (None, 8):
        config = tiny(f"stop {stop}", micro_batch=8, steps=12, valid_every=100)
        with pytest.raises(UserError, match="not finite for 3 steps in a row"):
            if stop is not None:
                pretrain(config, sick(config, range(6, 12), of_rows=True), stop_after=stop)
            pretrain(config, sick(config, range(6, 12), of_rows=True))
        assert "3 steps in a row, up to step 9: going back" in capfd.readouterr().err


def test_after_going_back_the_count_begins_anew(tiny, capfd):
    """The checkpoint is from between the three: one more step that fails is one, not the third."""
    config = tiny(micro_batch=8, steps=12, valid_every=100)
    run = pretrain(config, sick(config, [3, 4, 5], of_rows=True))
    assert run.is_complete
    assert "up to step 6: going back" in capfd.readouterr().err
    assert run.metrics()[-1]["num_skipped"] == 3  # two before the checkpoint, one after


def test_three_in_a_row_are_seen_also_when_good_steps_followed_before_anybody_looked(tiny):
    from electrakit.train.distributed import Team
    from electrakit.train.loop import train_step
    from electrakit.train.training import Training

    config = tiny(micro_batch=8)
    config.run.mkdir()
    training = Training(config, sick(config, [1, 2, 3]), Team(torch.device("cpu")))
    for _ in range(6):
        train_step(training)
        training.progress.step += 1
    assert training.figures.take_longest_row() == 3
    assert training.figures.take_longest_row() == 0  # they were looked at
    training.close()

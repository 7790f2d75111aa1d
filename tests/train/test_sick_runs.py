"""Steps whose loss or gradient is not finite are skipped and counted; after three in a row the last checkpoint is loaded."""

import pytest
import torch

from electrakit import pretrain
from electrakit.common.errors import UserError
from tests.helpers.runs import metrics_of, weights
from tests.helpers.sick_objective import sick


@pytest.mark.promise("Training", "NaN in the loss", "the step is skipped and counted")
def test_a_step_without_a_number_is_skipped_and_counted(tiny):
    config = tiny(micro_batch=8, log_every=1, steps=6)
    run = pretrain(config, sick(config, [2, 4]))
    assert run.is_complete
    assert [line["num_skipped"] for line in run.metrics()] == [0, 0, 1, 1, 2, 2]
    assert all(torch.isfinite(value).all() for value in weights(run).values())
    assert "loss" not in run.metrics()[2] and "loss" in run.metrics()[3]


@pytest.mark.promise("Training", "NaN three times in a row", "back to the last checkpoint, then a clear stop")
def test_three_in_a_row_go_back_once_and_then_stop(tiny, capfd):
    config = tiny(micro_batch=8, steps=12)
    run = pretrain(config, sick(config, [6, 7, 8]))  # other draws help
    assert run.is_complete
    assert "returning to the last checkpoint" in capfd.readouterr().err
    steps = [(line["split"], line["step"]) for line in metrics_of(run)]
    assert len(steps) == len(set(steps))

    config = tiny("hopeless", micro_batch=8, steps=12)
    with pytest.raises(UserError, match=r"not finite for 3 steps in a row.*step_0000006 did not help.*lower optim\.lr"):
        pretrain(config, sick(config, range(6, 12), of_rows=True))
    config = tiny("at once", micro_batch=8, steps=12)
    with pytest.raises(UserError, match="no checkpoint to return to"):
        pretrain(config, sick(config, range(12), of_rows=True))


def test_skipped_steps_are_counted_over_a_stop(tiny, capfd):
    """Three in a row are three in a row, also when the run was stopped between them."""
    for stop in (None, 8):
        config = tiny(f"stop {stop}", micro_batch=8, steps=12, valid_every=100)
        with pytest.raises(UserError, match="not finite for 3 steps in a row"):
            if stop is not None:
                pretrain(config, sick(config, range(6, 12), of_rows=True), stop_after=stop)
            pretrain(config, sick(config, range(6, 12), of_rows=True))
        assert "3 steps in a row, up to step 9: returning to the last checkpoint" in capfd.readouterr().err


def test_after_going_back_the_count_begins_anew(tiny, capfd):
    """The checkpoint is from between the three: one more step that fails is one, not the third."""
    config = tiny(micro_batch=8, steps=12, valid_every=100)
    run = pretrain(config, sick(config, [3, 4, 5], of_rows=True))
    assert run.is_complete
    assert "up to step 6: returning to the last checkpoint" in capfd.readouterr().err
    assert run.metrics()[-1]["num_skipped"] == 3  # two before the checkpoint, one after


def test_three_in_a_row_are_seen_also_when_good_steps_followed_before_the_count_was_read(tiny):
    from electrakit.train.distributed import ProcessGroup
    from electrakit.train.loop import train_step
    from electrakit.train.state import TrainState

    config = tiny(micro_batch=8)
    config.run.mkdir()
    training = TrainState(config, sick(config, [1, 2, 3]), ProcessGroup(torch.device("cpu")))
    for _ in range(6):
        train_step(training)
        training.progress.step += 1
    assert training.metrics.pop_longest_skip() == 3
    assert training.metrics.pop_longest_skip() == 0  # they were looked at
    training.close()

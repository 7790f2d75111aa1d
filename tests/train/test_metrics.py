"""Means of a log interval."""

import torch

from electrakit.objective.output import Output
from electrakit.runs.files import Progress
from electrakit.train.distributed import ProcessGroup
from electrakit.train.metrics import MetricSums

GROUP = ProcessGroup(torch.device("cpu"))


def step(metrics: MetricSums, loss: float, grad_norm: float = 1.0) -> bool:
    for part in (0.25, 0.75):  # two micro-batches, of a quarter and three quarters of the tokens
        output = Output(loss=torch.tensor(9.0), mlm_loss=torch.tensor(loss), gen_acc=torch.tensor(0.5))
        metrics.add(
            output, torch.tensor(loss * part), {"mlm_loss": torch.tensor(part), "disc_loss": torch.tensor(part)}, 0.5
        )
    is_finite = torch.isfinite(torch.tensor(grad_norm)) & torch.isfinite(metrics.step_loss())
    metrics.end_step(is_finite, torch.tensor(grad_norm), lr=0.1)
    return bool(is_finite)


def test_means_are_over_the_steps_of_the_interval():
    metrics = MetricSums(GROUP, Progress())
    assert step(metrics, 2.0, 1.0) and step(metrics, 4.0, 3.0)
    assert metrics.pop_means() == {"loss": 3.0, "mlm_loss": 3.0, "gen_acc": 0.5, "grad_norm": 2.0, "lr": 0.1}
    assert metrics.pop_means() == {}


def test_steps_that_are_not_finite_are_counted_and_left_out():
    metrics = MetricSums(GROUP, Progress(num_skipped=5, num_skipped_in_a_row=1))
    assert not step(metrics, float("nan"))
    assert not step(metrics, 1.0, float("inf"))
    assert (metrics.num_skipped.item(), metrics.num_in_a_row.item()) == (7, 3)
    assert step(metrics, 2.0)
    assert (metrics.num_skipped.item(), metrics.num_in_a_row.item()) == (7, 0)
    assert [metrics.pop_longest_skip(), metrics.pop_longest_skip()] == [3, 0]
    assert metrics.pop_means()["loss"] == 2.0


def test_sums_go_through_a_checkpoint_to_the_last_bit():
    whole, halves = MetricSums(GROUP, Progress()), MetricSums(GROUP, Progress())
    values = [0.1, 0.7, 1 / 3, 2.9]
    for value in values[:2]:
        step(whole, value)
        step(halves, value)
    halves = MetricSums(GROUP, Progress(sums=halves.gather()))
    for value in values[2:]:
        step(whole, value)
        step(halves, value)
    assert whole.pop_means() == halves.pop_means()

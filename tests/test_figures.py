"""Means of a log interval."""

import torch

from electrakit.objective.output import Output
from electrakit.train.checkpoint import Progress
from electrakit.train.distributed import Team
from electrakit.train.figures import Figures

TEAM = Team(torch.device("cpu"))


def step(figures: Figures, loss: float, grad_norm: float = 1.0) -> bool:
    for part in (0.25, 0.75):  # two micro-batches, of a quarter and three quarters of the tokens
        output = Output(loss=torch.tensor(9.0), mlm_loss=torch.tensor(loss), gen_acc=torch.tensor(0.5))
        figures.add(output, torch.tensor(loss * part), torch.tensor([part, part]), 0.5)
    return bool(figures.end_step(torch.tensor(grad_norm), lr=0.1))


def test_means_are_over_the_steps_of_the_interval():
    figures = Figures(TEAM, Progress())
    assert step(figures, 2.0, 1.0) and step(figures, 4.0, 3.0)
    assert figures.means() == {"loss": 3.0, "mlm_loss": 3.0, "gen_acc": 0.5, "grad_norm": 2.0, "lr": 0.1}
    assert figures.means() == {}


def test_steps_that_are_not_finite_are_counted_and_left_out():
    figures = Figures(TEAM, Progress(num_skipped=5, num_skipped_in_a_row=1))
    assert not step(figures, float("nan"))
    assert not step(figures, 1.0, float("inf"))
    assert (figures.num_skipped.item(), figures.num_in_a_row.item()) == (7, 3)
    assert step(figures, 2.0)
    assert (figures.num_skipped.item(), figures.num_in_a_row.item()) == (7, 0)
    assert [figures.take_longest_row(), figures.take_longest_row()] == [3, 0]
    assert figures.means()["loss"] == 2.0


def test_sums_go_through_a_checkpoint_to_the_last_bit():
    whole, halves = Figures(TEAM, Progress()), Figures(TEAM, Progress())
    values = [0.1, 0.7, 1 / 3, 2.9]
    for value in values[:2]:
        step(whole, value)
        step(halves, value)
    halves = Figures(TEAM, Progress(sums=halves.gather()))
    for value in values[2:]:
        step(whole, value)
        step(halves, value)
    assert whole.means() == halves.means()

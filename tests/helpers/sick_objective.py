"""An objective whose loss is not a number at chosen steps."""

import math
from collections.abc import Iterable

import torch
from torch import nn

import electrakit as ek
from electrakit.objective.build import build_objective
from electrakit.objective.output import Output
from electrakit.objective.randomness import row_keys


class Sick(nn.Module):
    """An objective whose loss is no number for some rows, or for some draws: a function of its input, as a real problem is."""

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

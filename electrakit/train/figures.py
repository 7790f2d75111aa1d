"""Outputs of micro-batches in, the means of a log interval out: added up on the device, so that nothing waits."""

import torch
from torch import Tensor

from electrakit.objective.output import Output
from electrakit.train.checkpoint import Progress
from electrakit.train.distributed import Team
from electrakit.train.losses import LOSSES


class Figures:
    """Sums of each figure since the last line of the log. As a dict of numbers they are part of a checkpoint."""

    def __init__(self, team: Team, progress: Progress) -> None:
        self.team = team
        self.of_step: dict[str, Tensor] = {}
        saved = progress.sums if team.is_first else {}  # the others begin at 0: what is saved is the sum over all
        self.sums = {name: self.number(value) for name, value in saved.items()}
        self.num_skipped = self.number(progress.num_skipped)
        self.num_in_a_row = self.longest_row = self.number(progress.num_skipped_in_a_row)

    def number(self, value: float) -> Tensor:
        """Filled in on the device: torch.tensor would make a copy there, and wait for it."""
        return torch.full((), value, dtype=torch.float64, device=self.team.device)

    def add(self, output: Output, loss: Tensor, shares: Tensor, share_of_rows: float) -> None:
        """One micro-batch of this step: losses weigh by their tokens, other figures by rows."""
        share = dict(zip(LOSSES, shares, strict=True))
        for name, value in output.metrics.items():
            part = (loss.detach() if name == "loss" else value * share.get(name, share_of_rows)).double()
            self.of_step[name] = self.of_step[name] + part if name in self.of_step else part

    def end_step(self, grad_norm: Tensor, lr: float) -> Tensor:
        """Whether loss and gradient are finite. Steps that are not are counted, and their figures left out."""
        is_finite = torch.isfinite(grad_norm) & torch.isfinite(self.team.sum(self.of_step["loss"].clone()))
        if self.team.is_first:
            self.of_step |= {"grad_norm": grad_norm.double(), "lr": self.number(lr), "num_steps": self.number(1.0)}
        for name, value in self.of_step.items():
            part = torch.where(is_finite, value, 0.0)
            self.sums[name] = self.sums[name] + part if name in self.sums else part
        self.of_step = {}
        self.num_skipped = self.num_skipped + ~is_finite
        self.num_in_a_row = (self.num_in_a_row + 1) * ~is_finite
        self.longest_row = torch.maximum(self.longest_row, self.num_in_a_row)
        return is_finite

    def take_longest_row(self) -> int:
        """The most steps in a row that were skipped since the last look: good ones may have followed before anybody looked."""
        longest, self.longest_row = int(self.longest_row.item()), self.num_in_a_row
        return longest

    def gather(self) -> dict[str, float]:
        """The sums over all processes. The first one then holds them and goes on from there, as after a checkpoint is read."""
        names = self.team.share(sorted(self.sums))
        values = [self.sums.get(name, self.number(0.0)) for name in names]
        totals = self.team.sum(torch.stack(values)).tolist() if values else []
        numbers = dict(zip(names, totals, strict=True))
        self.sums = {name: self.number(value) for name, value in numbers.items() if self.team.is_first}
        return numbers

    def means(self) -> dict[str, float]:
        """Of the interval, which ends here."""
        sums = self.gather()
        self.sums = {}
        num_steps = sums.pop("num_steps", 0.0)
        return {name: value / num_steps for name, value in sums.items()} if num_steps else {}

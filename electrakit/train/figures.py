"""Outputs of micro-batches in, the means of a log interval out: added up on the device, so that nothing waits."""

import torch
from torch import Tensor

from electrakit.objective.output import Output
from electrakit.train.distributed import Team
from electrakit.train.losses import LOSSES


class Figures:
    """Sums of each figure since the last line of the log. As a dict of numbers they are part of a checkpoint."""

    def __init__(self, team: Team, saved: dict[str, float]) -> None:
        self.team = team
        self.of_step: dict[str, Tensor] = {}
        self.sums = {
            name: self._number(value) for name, value in saved.items() if team.is_first
        }  # the others begin at 0
        self.num_skipped = self._number(0.0)
        self.num_in_a_row = self._number(0.0)

    def _number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.team.device)

    def add(self, output: Output, loss: Tensor, shares: Tensor, share_of_rows: float) -> None:
        """One micro-batch of this step: losses weigh by their tokens, other figures by rows."""
        share = dict(zip(LOSSES, shares, strict=True))
        for name, value in output.metrics.items():
            part = loss.detach() if name == "loss" else value * share.get(name, share_of_rows)
            self.of_step[name] = self.of_step.get(name, self._number(0.0)) + part

    def end_step(self, grad_norm: Tensor, lr: float) -> Tensor:
        """Whether loss and gradient are finite. Steps that are not are counted, and their figures left out."""
        is_finite = torch.isfinite(grad_norm) & torch.isfinite(self.team.sum(self.of_step["loss"].clone()))
        if self.team.is_first:
            self.of_step |= {"grad_norm": grad_norm, "lr": self._number(lr), "num_steps": self._number(1.0)}
        for name, value in self.of_step.items():
            self.sums[name] = self.sums.get(name, self._number(0.0)) + torch.where(is_finite, value, 0.0)
        self.of_step = {}
        self.num_skipped = self.num_skipped + ~is_finite
        self.num_in_a_row = (self.num_in_a_row + 1) * ~is_finite
        return is_finite

    def take_skipped(self) -> int:
        """Steps without an update since the last time that somebody asked."""
        number = int(self.num_skipped.item())
        self.num_skipped = self._number(0.0)
        return number

    @property
    def num_skipped_in_a_row(self) -> int:
        return int(self.num_in_a_row.item())

    def gather(self) -> dict[str, float]:
        """The sums over all processes. The first one then holds them and goes on from there, as after a checkpoint is read."""
        names = self.team.share(sorted(self.sums))
        values = (
            torch.stack([self.sums.get(name, self._number(0.0)) for name in names])
            if names
            else self._number(0.0)[None][:0]
        )
        numbers = dict(zip(names, self.team.sum(values).tolist(), strict=True))
        self.sums = {name: self._number(value) for name, value in numbers.items() if self.team.is_first}
        return numbers

    def means(self) -> dict[str, float]:
        """Of the interval, which ends here."""
        sums = self.gather()
        self.sums = {}
        num_steps = sums.pop("num_steps", 0.0)
        return {name: value / num_steps for name, value in sums.items()} if num_steps else {}

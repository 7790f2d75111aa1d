"""Sums the metrics of micro-batches on the device; their means make a line of the log."""

from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from electrakit.objective.masking import MaskedBatch
from electrakit.objective.output import Output
from electrakit.objective.randomness import Draws
from electrakit.runs.files import Progress
from electrakit.train.distributed import ProcessGroup

LOSSES = ("mlm_loss", "disc_loss", "correct_loss")


class TokenCounting(Protocol):
    """An objective that masks before its forward pass, and then knows how many tokens its losses are means over."""

    loss_weights: tuple[float, float, float]

    def mask(self, ids: Tensor, draws: Draws | Tensor | MaskedBatch | None = None) -> MaskedBatch: ...


def counts_tokens(objective: nn.Module) -> TypeGuard[TokenCounting]:
    """Whether the objective says how many tokens its losses are means over. For a user's own objective only rows are known."""
    # Asked of the class: a wrapper that hands attributes on may change the loss.
    return hasattr(type(objective), "counts_tokens") and bool(objective.counts_tokens)


class MetricSums:
    """Sums since the last line of the log; a checkpoint contains them. Nothing here waits for the device before a log is due."""

    def __init__(self, group: ProcessGroup, progress: Progress) -> None:
        self.group = group
        self.of_step: dict[str, Tensor] = {}
        # A checkpoint holds the sums over all ranks. Rank 0 continues from them, the others start at 0.
        saved = progress.sums if group.is_main else {}
        self.sums = {name: self.scalar(value) for name, value in saved.items()}
        self.num_skipped = self.scalar(progress.num_skipped)
        self.num_in_a_row = self.longest_skip = self.scalar(progress.num_skipped_in_a_row)

    def scalar(self, value: float) -> Tensor:
        """Filled in on the device: torch.tensor would copy it there, and wait."""
        return torch.full((), value, dtype=torch.float64, device=self.group.device)

    def add(self, output: Output, loss: Tensor, token_shares: dict[str, Tensor], row_share: float) -> None:
        """Add a micro-batch. Losses are weighted by its share of the step's tokens, other metrics by its share of the rows."""
        for name, value in output.metrics.items():
            part = (loss.detach() if name == "loss" else value * token_shares.get(name, row_share)).double()
            self.of_step[name] = self.of_step[name] + part if name in self.of_step else part

    def step_loss(self) -> Tensor:
        """The loss of the current step, over all ranks."""
        return self.group.sum(self.of_step["loss"].clone())

    def end_step(self, is_finite: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Add the step to the sums. One that is not finite is counted as skipped, and leaves the sums as they are."""
        if self.group.is_main:
            self.of_step |= {"grad_norm": grad_norm.double(), "lr": self.scalar(lr), "num_steps": self.scalar(1.0)}
        for name, value in self.of_step.items():
            part = torch.where(is_finite, value, 0.0)
            self.sums[name] = self.sums[name] + part if name in self.sums else part
        self.of_step = {}
        self.num_skipped = self.num_skipped + ~is_finite
        self.num_in_a_row = (self.num_in_a_row + 1) * ~is_finite
        self.longest_skip = torch.maximum(self.longest_skip, self.num_in_a_row)

    def pop_longest_skip(self) -> int:
        """The most steps in a row that were skipped since the last call, also if finite ones have followed."""
        longest, self.longest_skip = int(self.longest_skip.item()), self.num_in_a_row
        return longest

    def gather(self) -> dict[str, float]:
        """The sums over all ranks. Rank 0 then holds them, as after a checkpoint is loaded: resuming gives the same bits."""
        names = self.group.broadcast(sorted(self.sums))
        values = [self.sums.get(name, self.scalar(0.0)) for name in names]
        totals = self.group.sum(torch.stack(values)).tolist() if values else []
        numbers = dict(zip(names, totals, strict=True))
        self.sums = {name: self.scalar(value) for name, value in numbers.items() if self.group.is_main}
        return numbers

    def pop_means(self) -> dict[str, float]:
        """The means since the last line of the log; the sums start again at 0."""
        sums = self.gather()
        self.sums = {}
        num_steps = sums.pop("num_steps", 0.0)
        return {name: value / num_steps for name, value in sums.items()} if num_steps else {}

"""Measures an objective on the valid split: always the same rows with the same masks, so that curves can be compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from electrakit.config.pretrain import PretrainConfig
from electrakit.data.batches import Batches
from electrakit.data.manifest import read_manifest
from electrakit.objective.output import EvaluationSums, Output
from electrakit.train.distributed import ProcessGroup
from electrakit.train.metrics import LOSSES, counts_tokens
from electrakit.train.prefetch import MicroBatch, Prefetch

SEED = 0  # of rows and masks: with the run's seed, two runs could not be compared


class Validation:
    """The rows of the valid split that a run is measured on."""

    def __init__(self, config: PretrainConfig, group: ProcessGroup) -> None:
        assert config.data is not None
        self.group = group
        num_rows = min(config.valid_rows, read_manifest(config.data).num_rows.get("valid", 0))
        self.can_run = num_rows >= group.world_size
        if self.can_run:
            place: dict[str, Any] = {"rank": group.rank, "world_size": group.world_size}
            batches = Batches(config.data, num_rows, split="valid", seed=SEED, micro_batch=config.micro_batch, **place)
            self.prefetch = Prefetch(batches, SEED, group)

    @torch.no_grad()
    def __call__(self, objective: nn.Module, forward: Callable[[nn.Module, MicroBatch], Output]) -> dict[str, float]:
        """The metrics over all rows, without dropout; empty if there are too few rows. `loss` is weighted as in training."""
        if not self.can_run:
            return {}
        sums = EvaluationSums(self.group.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.group.device)
        objective.eval()
        for micro_batch in self.prefetch.iterate(0):
            output = forward(objective, micro_batch)
            if micro_batch.num_rows:
                sums.add(output)
                loss += output.loss.double() * micro_batch.num_rows / self.prefetch.batches.batch_size
        objective.train()
        for tensor in (loss, *sums.tensors()):
            self.group.sum(tensor)
        metrics = sums.result()
        if counts_tokens(objective):
            weights = zip(LOSSES, objective.loss_weights, strict=True)
            return {"loss": sum(weight * metrics[name] for name, weight in weights if name in metrics), **metrics}
        return {"loss": loss.item(), **metrics}

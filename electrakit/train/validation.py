"""Measures an objective on the valid split: always the same rows with the same masks, so that curves can be compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from electrakit.config.pretrain import PretrainConfig
from electrakit.data.batches import Batches
from electrakit.data.corruptions import CorruptedRows, corrupted_rows
from electrakit.data.manifest import read_manifest
from electrakit.objective.output import EvaluationSums, Output, exact_auc, finds_replaced
from electrakit.train.distributed import ProcessGroup
from electrakit.train.metrics import LOSSES, counts_tokens
from electrakit.train.prefetch import MicroBatch, Prefetch

SEED = 0  # of rows and masks: with the run's seed, two runs could not be compared
CORRUPTIONS = ("frequency", "neighbours", "swapped")
CORRUPTED_ROWS = 64  # of each: about 1,400 scored words in rows of 128, so an AUC is right to about .015


def num_valid_rows(config: PretrainConfig) -> int:
    assert config.data is not None
    return min(config.valid_rows, read_manifest(config.data).num_rows.get("valid", 0))


class Validation:
    """The rows of the valid split that a run is measured on."""

    def __init__(self, config: PretrainConfig, group: ProcessGroup) -> None:
        assert config.data is not None
        self.group = group
        num_rows = num_valid_rows(config)
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


class FixedCorruptions:
    """How well a discriminator finds words that were changed in fixed ways.

    `disc_auc` depends on how well the run's own generator deceives; these depend on the shards alone, so any two runs on
    them can be compared. A masked language model would need a pass for every scored word: `electra measure` does that.
    """

    def __init__(self, config: PretrainConfig, group: ProcessGroup) -> None:
        assert config.data is not None
        self.shards, self.micro_batch, self.group = config.data, config.micro_batch, group
        num_rows = num_valid_rows(config)
        self.num_rows = min(CORRUPTED_ROWS, num_rows) if num_rows >= group.world_size else 0  # 0: no validation either
        self.rows: dict[str, CorruptedRows] | None = None

    def prepare(self, objective: nn.Module) -> None:
        """Count the train split and make the rows, once, where the objective can be asked about them: takes seconds."""
        if self.rows is None and finds_replaced(objective) and self.num_rows:
            rows = corrupted_rows(self.shards, self.num_rows, SEED)
            self.rows = {way: rows[way] for way in CORRUPTIONS if rows[way].is_changed.any()}

    @torch.no_grad()
    def __call__(self, objective: nn.Module) -> dict[str, float]:
        """The AUC of each way, without dropout; empty for an objective that has no discriminator of tokens."""
        self.prepare(objective)
        if not self.rows:
            return {}
        objective.eval()
        metrics = {f"auc_{way}": self.auc(objective, rows) for way, rows in self.rows.items()}
        objective.train()
        return metrics

    def auc(self, objective: Any, rows: CorruptedRows) -> float:
        ids, group = torch.from_numpy(rows.ids), self.group
        logits = torch.zeros(ids.shape)
        # Every rank computes as often as the others, as FSDP needs it: one with fewer rows repeats some, which do not count.
        numbers = torch.arange(group.rank, len(ids) + -len(ids) % group.world_size, group.world_size)
        for few in numbers.split(self.micro_batch or len(numbers)):
            found = objective.replaced_logits(ids[few % len(ids)].to(group.device)).cpu()
            logits[few[few < len(ids)]] = found[few < len(ids)]
        is_scored = torch.from_numpy(rows.is_scored)
        return exact_auc(group.sum(logits)[is_scored], torch.from_numpy(rows.is_changed)[is_scored])

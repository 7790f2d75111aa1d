"""A valid split in, figures out: always the same rows, always corrupted in the same way, so that curves can be compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from electrakit.data.batches import Batches, read_manifest
from electrakit.objective.output import EvaluationSums, Output
from electrakit.pretrain_config import PretrainConfig
from electrakit.train.distributed import Team
from electrakit.train.feed import Feed, Piece
from electrakit.train.losses import LOSSES, has_tokens, loss_weights

SEED = 0  # of the rows and of what is masked: that of the run would make two runs incomparable


class Validation:
    """Reads the rows of the valid split that a run is measured on."""

    def __init__(self, config: PretrainConfig, team: Team) -> None:
        assert config.data is not None
        self.team = team
        num_rows = min(config.valid_rows, read_manifest(config.data)["splits"].get("valid", {}).get("rows", 0))
        self.can_run = num_rows >= team.size
        if self.can_run:
            settings: dict[str, Any] = {"rank": team.rank, "world_size": team.size, "micro_batch": config.micro_batch}
            self.feed = Feed(Batches(config.data, num_rows, split="valid", seed=SEED, **settings), SEED, team)

    @torch.no_grad()
    def __call__(self, objective: nn.Module, compute: Callable[[nn.Module, Piece], Output]) -> dict[str, float]:
        """The objective's figures over all rows, without dropout; `loss` weighs its parts as in training."""
        if not self.can_run:
            return {}
        sums = EvaluationSums(self.team.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.team.device)
        objective.eval()
        for piece in self.feed.read_pieces(0):
            output = compute(objective, piece)
            if piece.num_rows:
                sums.add(output)
                loss += output.loss.double() * piece.num_rows / self.feed.batches.batch_size
        objective.train()
        for tensor in (loss, *sums.tensors()):
            self.team.sum(tensor)
        figures = sums.result()
        return {"loss": total_loss(objective, figures) if has_tokens(objective) else loss.item(), **figures}


def total_loss(objective: nn.Module, figures: dict[str, float]) -> float:
    return sum(
        weight * figures[name] for name, weight in zip(LOSSES, loss_weights(objective), strict=True) if name in figures
    )

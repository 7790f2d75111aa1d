"""Micro-batches in, one loss out: a mean over all tokens of the step, however many pieces and processes they are divided between."""

from typing import TypeGuard, get_args

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from electrakit.objective import corrupt
from electrakit.objective.electra import Electra
from electrakit.objective.mlm import AllTokensMLM, MaskedLM, ReplaceMLM
from electrakit.objective.output import Output
from electrakit.train.distributed import Team
from electrakit.train.feed import Piece

LOSSES = ("mlm_loss", "disc_loss")
Ours = Electra | MaskedLM | ReplaceMLM | AllTokensMLM


def loss_weights(objective: nn.Module) -> tuple[float, float]:
    """Of the two losses, as the objective adds them up."""
    return getattr(objective, "gen_weight", 1.0), getattr(objective, "disc_weight", 1.0)


def has_tokens(objective: nn.Module) -> TypeGuard[Ours]:
    """Whether we know which tokens its losses are means of. Of somebody's own objective, a subclass too, only rows can be counted."""
    # fully_shard makes a class of FSDPModule and the class that was there
    kind = type(objective).__bases__[1] if isinstance(objective, FSDPModule) else type(objective)
    return kind in get_args(Ours)


def shares_of(pieces: list[Piece], objective: nn.Module, batch_size: int, team: Team) -> list[Tensor]:
    """For each piece, which share of the step's tokens each of its two losses is the mean of: (2,).

    The mean of the pieces' means would be another number: rows have different lengths.
    """
    if len(pieces) == 1 and team.size == 1:
        return [torch.ones(2, device=team.device)]
    if not has_tokens(objective):
        return [torch.full((2,), piece.num_rows / batch_size, device=team.device) for piece in pieces]
    counts = torch.stack([count_tokens(objective, piece) for piece in pieces])  # (N, 2)
    total = team.sum(counts.sum(0))
    return list((counts / total.clamp(min=1)).float())


@torch.no_grad()
def count_tokens(objective: Ours, piece: Piece) -> Tensor:
    """How many tokens the generator's and the discriminator's losses of a piece are means of: float64 (2,)."""
    masking = objective.masking
    positions, counts = masking.choose(piece.ids, masking.draws(piece.ids, piece.keys).lottery)
    if isinstance(objective, ReplaceMLM):
        num_scored = counts.sum()
    elif getattr(objective, "loss_on", "all") == "masked":
        num_scored = corrupt.is_chosen(piece.ids, positions, counts).sum()
    else:
        num_scored = (piece.ids != masking.special.pad).sum()
    return torch.stack([counts.sum(), num_scored]).double() * bool(piece.num_rows)


def share_of_loss(output: Output, shares: Tensor, objective: nn.Module) -> Tensor:
    """What a piece adds to the loss of the step."""
    if not has_tokens(objective):
        return output.loss * shares[0]
    parts = zip(loss_weights(objective), (output.mlm_loss, output.disc_loss), shares, strict=True)
    return torch.stack([weight * loss * share for weight, loss, share in parts if loss is not None]).sum()

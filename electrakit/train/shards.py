"""Weights that FSDP has divided between the ranks: this rank's rows, lengths of whole weights, and work on whole matrices.

FSDP gives each rank a run of rows of every weight, the last ranks fewer or none.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """The rows of this rank, in the same memory; a tensor that is not sharded is returned unchanged."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")  # a DTensor, whose module takes a second to import


def norms(weight: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """The norms of whole tensors of which every rank has `parts`, divided as `weight` is."""
    if not is_sharded(weight):
        return tuple(part.norm() for part in parts)
    squares = torch.stack([part.norm().double().square() for part in parts])
    dist.all_reduce(squares, group=group_of(weight))
    return tuple(squares.sqrt().float())


def map_matrices(weights: list[Any], parts: list[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What `work` makes of whole matrices (N, R, C), as this rank's rows again. `parts` are divided as the `weights` are.

    Sharded matrices are sent to one rank each, which works on them, and sent back: no rank computes or holds what another does.
    """
    if not is_sharded(weights[0]):
        return list(work(torch.stack(parts)))
    group, num_rows = group_of(weights[0]), weights[0].size(0)
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    rows = [len(chunk) for chunk in torch.arange(num_rows).chunk(world_size)]  # as FSDP divides them
    rows += [0] * (world_size - len(rows))
    owned = [len(parts[owner::world_size]) for owner in range(world_size)]  # matrix i is of rank i modulo their number
    width = parts[0].size(1)
    mine = torch.stack([part for owner in range(world_size) for part in parts[owner::world_size]])  # (N, rows, C)
    outward, homeward = ([count * rows[rank] * width for count in owned], [owned[rank] * each * width for each in rows])
    arrived = exchange(mine.flatten(), outward, homeward, group).split(homeward)
    pieces = [piece.view(owned[rank], each, width) for piece, each in zip(arrived, rows, strict=True)]
    whole = torch.cat(pieces, dim=1)  # (owned, R, C)
    made = work(whole) if owned[rank] else whole
    returned = torch.cat([piece.flatten() for piece in made.split(rows, dim=1)])
    back = exchange(returned, homeward, outward, group).view_as(mine)
    order = [number for owner in range(world_size) for number in range(owner, len(parts), world_size)]
    return [back[order.index(number)] for number in range(len(parts))]


def exchange(values: Tensor, num_sent: list[int], num_received: list[int], group: Any) -> Tensor:
    """Send each rank its part of flat values; what all ranks have sent to this one."""
    received = values.new_empty(sum(num_received))
    dist.all_to_all_single(received, values.contiguous(), num_received, num_sent, group=group)
    return received


def group_of(weight: Any) -> Any:
    """The ranks that it is divided between, by rows."""
    (placement,) = weight.placements
    assert placement.is_shard(0), f"a weight is placed as {placement}, not divided by rows"
    return weight.device_mesh.get_group()

"""The environment of torchrun in, a team of processes out: who we are, on which device, and what all must agree on."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.model.encoder import ClassicLayer
from electrakit.model.modern import ModernLayer

COMPUTING = timedelta(minutes=30)  # after this long without an answer, a process that computes gives the others up
WAITING = timedelta(days=1)  # while the first one writes, or on_checkpoint works


@dataclass(frozen=True)
class Team:
    """The processes of a run; without torchrun there is one."""

    device: torch.device
    rank: int = 0
    size: int = 1
    talk: Any = None  # a gloo group: numbers that decide what happens next never wait for a GPU

    @property
    def is_first(self) -> bool:
        """The one that writes files and the log."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.talk if tensor.device.type == "cpu" else None)
        return tensor

    def agree(self, is_asked_to_stop: bool, seconds: float) -> tuple[bool, float]:
        """Whether anybody was asked to stop, and the first one's clock."""
        if self.size == 1:
            return is_asked_to_stop, seconds
        told = torch.tensor([is_asked_to_stop, seconds if self.is_first else 0.0], dtype=torch.float64)
        num_asked, clock = self.sum(told).tolist()
        return num_asked > 0, clock

    def first_does(self, work: Callable[[], None]) -> None:
        """The first one works, the others wait; what goes wrong goes wrong for all, and nobody waits for ever."""
        problem = None
        if self.is_first:
            try:
                work()
            except UserError as error:
                problem = str(error)
        if problem := self.share(problem):
            raise UserError(problem)

    def share(self, value: Any) -> Any:
        """What the first one says."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.talk)
        return box[0]


@contextlib.contextmanager
def join() -> Iterator[Team]:
    """The team that torchrun's environment names. Leaves it at the end if it was founded here."""
    device = find_device()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield Team(device)
        return
    is_founder = not dist.is_initialized()
    if is_founder:
        backend = "nccl" if device.type == "cuda" else "gloo"
        bound = device if backend == "nccl" else None
        dist.init_process_group(backend, timeout=COMPUTING, device_id=bound)
    talk = dist.new_group(backend="gloo", timeout=WAITING)
    try:
        yield Team(device, dist.get_rank(), dist.get_world_size(), talk)
    finally:
        dist.destroy_process_group(None if is_founder else talk)


def find_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")  # TF32
    return device


def wrapped(objective: nn.Module, team: Team, *, fsdp: bool, has_unused: bool = False) -> nn.Module:
    """The module whose backward pass averages gradients over the team. `has_unused`: some parameters may take no part in a loss."""
    if fsdp:
        return sharded(objective, team)
    if team.size == 1:
        return objective
    return nn.parallel.DistributedDataParallel(
        objective,
        device_ids=[team.device.index] if team.device.type == "cuda" else None,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=has_unused,
    )


def sharded(objective: nn.Module, team: Team) -> nn.Module:
    """FSDP2, in place. Layers are gathered one by one; all else, the shared embeddings too, with the whole."""
    if team.size == 1:
        raise UserError(
            "fsdp divides the weights between processes, and there is one; start with torchrun, or leave --fsdp out"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(team.device.type, (team.size,))
    for module in list(objective.modules()):
        if isinstance(module, ClassicLayer | ModernLayer):
            fully_shard(module, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    return objective


@contextlib.contextmanager
def averaging(module: nn.Module, is_last: bool) -> Iterator[None]:
    """Gradients travel with the last micro-batch of a step only."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and not is_last:
        with module.no_sync():
            yield
        return
    set_sync: Any = getattr(module, "set_requires_gradient_sync", None)  # of FSDP
    if set_sync is not None:
        set_sync(is_last)
    yield


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that FSDP has divided; the others as they are. Every process must ask."""
    gather: Any = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Write into a tensor that FSDP may have divided."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(tensor, DTensor):
        values = distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements)
    tensor.copy_(values)

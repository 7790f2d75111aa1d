"""The process group of a run: rank and device of this process, what is exchanged between ranks, DDP and FSDP."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.model.networks import LAYERS
from electrakit.objective.output import finds_replaced

# After this long without an answer, a rank that computes gives up.
COMPUTE_TIMEOUT = timedelta(minutes=30)
# Rank 0 may write a checkpoint, or run on_checkpoint, while the others wait.
WAIT_TIMEOUT = timedelta(days=1)

Value = TypeVar("Value")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run; without torchrun there is one."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    gloo: Any = None
    """A group on the CPU: values that decide what happens next never wait for a GPU."""

    @property
    def is_main(self) -> bool:
        """Rank 0 writes files and the log."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, group=self.gloo if tensor.device.type == "cpu" else None)
        return tensor

    def agree(self, stop_requested: bool, clock: float = 0.0, is_save_due: bool = False) -> tuple[bool, float, bool]:
        """Whether any rank was asked to stop; the clock of rank 0, and whether by it a checkpoint is due. In one exchange."""
        if self.world_size == 1:
            return stop_requested, clock, is_save_due
        of_main = [clock, is_save_due] if self.is_main else [0.0, 0.0]
        num_requests, clock, num_due = self.sum(torch.tensor([stop_requested, *of_main], dtype=torch.float64)).tolist()
        return num_requests > 0, clock, num_due > 0

    def run_on_main(self, work: Callable[[], Value]) -> Value:
        """Rank 0 works while the others wait; all get its result. A UserError is raised on all ranks, so that none waits forever."""
        value, problem = None, None
        if self.is_main:
            try:
                value = work()
            except UserError as error:
                problem = str(error)
        value, problem = self.broadcast((value, problem))
        if problem is not None:
            raise UserError(problem)
        return cast(Value, value)

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.gloo)
        return box[0]


@contextlib.contextmanager
def join_process_group() -> Iterator[ProcessGroup]:
    """The group that torchrun's environment describes. Destroyed at the end if it was initialised here."""
    device = find_device()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and not dist.is_initialized():
        yield ProcessGroup(device)
        return
    is_ours = not dist.is_initialized()
    if is_ours:
        backend = "nccl" if device.type == "cuda" else "gloo"
        bound = device if backend == "nccl" else None
        dist.init_process_group(backend, timeout=COMPUTE_TIMEOUT, device_id=bound)
    gloo = dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT)
    try:
        yield ProcessGroup(device, dist.get_rank(), dist.get_world_size(), gloo)
    finally:
        dist.destroy_process_group(None if is_ours else gloo)


def find_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")  # TF32
    return device


def distribute(objective: nn.Module, group: ProcessGroup, *, fsdp: bool, has_unused: bool = False) -> nn.Module:
    """The module whose backward pass averages gradients over all ranks. `has_unused`: some parameters may have no gradient."""
    if fsdp:
        return shard(objective, group)
    if group.world_size == 1:
        return objective
    return nn.parallel.DistributedDataParallel(
        objective,
        device_ids=[group.device.index] if group.device.type == "cuda" else None,
        forward_sync_buffers=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=has_unused,
    )


def shard(objective: nn.Module, group: ProcessGroup) -> nn.Module:
    """FSDP2, in place. Layers are gathered one by one; all else, shared embeddings too, with the objective."""
    if group.world_size == 1:
        raise UserError(
            "fsdp divides the weights between processes, and there is one; start with torchrun, or leave --fsdp out"
        )
    if getattr(objective, "generator_steps", None) is not None:
        raise UserError("generator_steps copies whole networks, fsdp divides them: leave one out")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(group.device.type, (group.world_size,))
    for module in list(objective.modules()):
        if isinstance(module, LAYERS):
            fully_shard(module, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    if finds_replaced(objective):
        register_fsdp_forward_method(objective, "replaced_logits")
    return objective


@contextlib.contextmanager
def gradient_sync(module: nn.Module, is_last: bool) -> Iterator[None]:
    """Gradients are exchanged in the backward pass of a step's last micro-batch only."""
    if isinstance(module, nn.parallel.DistributedDataParallel) and not is_last:
        with module.no_sync():
            yield
        return
    set_sync: Any = getattr(module, "set_requires_gradient_sync", None)  # of FSDP
    if set_sync is not None:
        set_sync(is_last)
    yield


def full_tensor(tensor: Tensor) -> Tensor:
    """Gathers a tensor that FSDP has sharded; others are returned unchanged. Every rank must call it."""
    gather: Any = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


@torch.no_grad()
def copy_into(tensor: Tensor, values: Tensor) -> None:
    """Copy the values into a tensor that FSDP may have sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(tensor, DTensor):
        values = distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements)
    tensor.copy_(values)

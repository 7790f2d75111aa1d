"""The optimizers: official Adam, AdamW, LAMB, and Muon with AdamW. Their state is a dict of named tensors."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.official_adam import allocate_state
from electrakit.config.optim import OptimConfig
from electrakit.model.gdes import gdes_tables
from electrakit.model.modern import ModernLayer
from electrakit.model.networks import LAYERS
from electrakit.model.tie import shared_parameters
from electrakit.train.distributed import copy_into
from electrakit.train.shards import local, map_matrices, norms

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: five steps bring singular values near 1
MUON_MOMENTUM = 0.95


def clipped_together(objective: nn.Module, config: OptimConfig) -> list[list[nn.Parameter]]:
    """The parameters whose gradients have one norm: all, or with `decoupled` those of the generator, and the others.

    Each parameter's update depends on its own gradient only, and one backward pass gives each network the gradient of its own loss. So
    this is what two optimizers do, one after the other, with the samples and word vectors of before the generator's update.
    """
    everything = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    if not config.decoupled:
        if getattr(objective, "adversarial", False):
            raise UserError(
                "an adversarial generator's gradient would vanish beside the discriminator's: set optim.decoupled"
            )
        return [everything]
    generator, discriminator = (getattr(objective, name, None) for name in ("generator", "discriminator"))
    if not isinstance(generator, nn.Module) or not isinstance(discriminator, nn.Module):
        raise UserError(f"optim.decoupled is of two networks, and {type(objective).__name__} has one: leave it out")
    if shared := shared_parameters(generator, discriminator):
        raise UserError(
            f"optim.decoupled: generator and discriminator share {shared[0]}; tie them with share='gdes' or 'nothing'"
        )
    of_generator = {id(parameter) for parameter in generator.parameters()}
    halves = ([one for one in everything if (id(one) in of_generator) == is_first] for is_first in (True, False))
    return [half for half in halves if half]


class RunOptimizer:
    """The optimizer of a run: one or two of torch's that work as one, with each parameter in exactly one group.

    Muon multiplies in `muon_dtype`: with bf16 it does what Jordan et al. do. Weights and averages are float32.
    """

    def __init__(self, module: nn.Module, config: OptimConfig, *, muon_dtype: torch.dtype = torch.float32) -> None:
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        if not self.names:
            raise UserError(f"{type(module).__name__} has no parameters to train")
        self.parts = make_parts(module, config, muon_dtype)
        self.adam_share = 1.0 if config.adam_lr is None else config.adam_lr / config.lr
        # On a GPU, reading a value would wait for the device.
        self.can_read = next(iter(self.names)).device.type == "cpu"

    def step(self, lr: float, is_finite: Tensor) -> None:
        """One update. If the gradient is not finite, weights and averages stay unchanged; on a GPU this is decided on the device."""
        if self.can_read and not is_finite.item():
            return
        found_inf = None if self.can_read else 1 - is_finite.float()
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr if isinstance(part, Muon) else lr * self.adam_share
            part.found_inf, part.grad_scale = found_inf, None  # type: ignore[attr-defined]  # what torch's GradScaler sets
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """All averages and counts, named "average/parameter"."""
        return {
            f"{kind}/{self.names[parameter]}": value
            for part in self.parts
            for parameter, values in part.state.items()
            for kind, value in values.items()
        }

    def load_state(self, saved: dict[str, Tensor]) -> None:
        """Load what `state` returned for the same optimizer and networks."""
        mine = self.state()
        if differing := sorted(set(mine) ^ set(saved)):
            raise UserError(f"the saved optimizer does not fit: {differing[0]} is in one of the two only")
        for name, value in mine.items():
            copy_into(value, saved[name])


def make_parts(module: nn.Module, config: OptimConfig, muon_dtype: torch.dtype) -> list[torch.optim.Optimizer]:
    """The optimizers, with all their state allocated."""
    groups = parameter_groups(module, config.weight_decay, has_muon=config.name == "muon")
    matrices = [group for group in groups if group["is_for_muon"]]
    rest = [group for group in groups if not group["is_for_muon"]]
    adam: torch.optim.Optimizer
    if config.name == "lamb":
        adam = Lamb(rest, config)
    else:
        adam = torch.optim.AdamW(rest, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
    allocate_state(adam, corrects_bias=config.name != "official_adam")
    return [Muon(matrices, config, muon_dtype), adam] if matrices else [adam]


def parameter_groups(module: nn.Module, weight_decay: float, has_muon: bool = False) -> list[dict[str, Any]]:
    """Each trained parameter once: matrices and tables decay, biases and norms do not. Muon groups matrices by `num_stacked`."""
    tables = {id(one) for each in module.modules() if isinstance(each, nn.Embedding) for one in each.parameters()}
    differences = {id(table.delta) for table in gdes_tables(module).values()}
    stacked = stacked_weights(module)
    found: dict[tuple[bool, float, int, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        is_for_muon = has_muon and is_matrix_of_layer(name, parameter) and id(parameter) not in tables
        decay = weight_decay if parameter.ndim > 1 else 0.0
        num_stacked = stacked.get(parameter, 1) if is_for_muon else 1
        # A difference that begins at 0 would hardly move: LAMB's step is as long as the weight.
        has_trust = parameter.ndim > 1 and id(parameter) not in differences
        found.setdefault((is_for_muon, decay, num_stacked, has_trust), []).append(parameter)
    names = ("is_for_muon", "weight_decay", "num_stacked", "has_trust")
    return [{"params": parameters, **dict(zip(names, key, strict=True))} for key, parameters in found.items()]


def is_matrix_of_layer(name: str, parameter: nn.Parameter) -> bool:
    """Layers are numbered. A head with one or two outputs is left out: there is nothing to orthogonalise."""
    return parameter.ndim == 2 and min(parameter.shape) > 2 and re.search(r"\.\d+\.", name) is not None


def stacked_weights(module: nn.Module) -> dict[Tensor, int]:
    """Query, key and value are one weight, and so are the two halves of a gated feed-forward: Muon orthogonalises each alone."""
    found: dict[Tensor, int] = {}
    for layer in module.modules():
        if isinstance(layer, LAYERS):
            found[layer.qkv.weight] = 3
        if isinstance(layer, ModernLayer):
            found[layer.ffn_in.weight] = 2
    return found


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterable[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@contextlib.contextmanager
def unless_skipped(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> Iterator[None]:
    """Undo the changes of these parameters and their state if `found_inf` is 1, without reading it from the device."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    tensors = [local(tensor) for one in parameters for tensor in (one, *optimizer.state[one].values())]
    before = [] if found_inf is None else [tensor.clone() for tensor in tensors]
    yield
    if found_inf is not None:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(found_inf > 0, value, tensor))


class Lamb(torch.optim.Optimizer):
    """You et al. 2020: Adam's step, scaled in each weight to the length of the weight. Biases and norms take Adam's own step."""

    def __init__(self, groups: list[dict[str, Any]], config: OptimConfig) -> None:
        super().__init__(groups, {"lr": config.lr})
        self.betas, self.eps = config.betas, config.eps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    with unless_skipped(self, [parameter]):
                        update = self.adam_update(parameter, group["weight_decay"])
                        length = trust(parameter, update) if group["has_trust"] else 1.0
                        local(parameter).sub_(update * (group["lr"] * length))

    def adam_update(self, parameter: nn.Parameter, weight_decay: float) -> Tensor:
        """Of the rows of this rank, if FSDP has divided them."""
        state, (beta1, beta2), gradient = self.state[parameter], self.betas, local(cast(Tensor, parameter.grad))
        state["step"] += 1
        average = local(state["exp_avg"]).lerp_(gradient, 1 - beta1)
        square = local(state["exp_avg_sq"]).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = (square / (1 - beta2 ** state["step"])).sqrt_().add_(self.eps)
        return (average / (1 - beta1 ** state["step"])).div_(corrected).add_(local(parameter), alpha=weight_decay)


def trust(parameter: Tensor, update: Tensor) -> Tensor:
    """How much longer the weight is than its update; 1 where either is 0."""
    length, step_length = norms(parameter, local(parameter), update)
    return torch.where((length > 0) & (step_length > 0), length / step_length, 1.0)


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024: a matrix moves by its averaged gradient with all singular values made about 1.

    The step is scaled so that its numbers are as large as AdamW's usually are (Liu et al. 2025), so both take the same lr.
    Matrices of the same shape are orthogonalised together; under FSDP, each on one rank.
    """

    def __init__(self, groups: list[dict[str, Any]], config: OptimConfig, dtype: torch.dtype) -> None:
        super().__init__(groups, {"lr": config.lr})
        self.dtype = dtype
        for parameter in parameters_of(self):
            self.state[parameter] = {"momentum": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
            for parameters in by_shape.values():
                with unless_skipped(self, parameters):
                    self.update(parameters, group)

    def update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        """One step of matrices of the same shape."""
        looked_ahead = [self.look_ahead(parameter) for parameter in parameters]
        num_rows, num_columns = parameters[0].size(0) // group["num_stacked"], parameters[0].size(1)

        def orthogonal(matrices: Tensor) -> Tensor:
            stacked = matrices.view(-1, num_rows, num_columns)
            return orthogonalise(stacked.to(self.dtype)).to(matrices.dtype).view(matrices.shape)

        scale = 0.2 * max(num_rows, num_columns) ** 0.5
        for parameter, update in zip(parameters, map_matrices(parameters, looked_ahead, orthogonal), strict=True):
            weight = local(parameter)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.sub_(update, alpha=group["lr"] * scale)

    def look_ahead(self, parameter: nn.Parameter) -> Tensor:
        """Nesterov's momentum, of the rows of this rank."""
        gradient = local(cast(Tensor, parameter.grad))
        momentum = local(self.state[parameter]["momentum"]).lerp_(gradient, 1 - MUON_MOMENTUM)
        return gradient.lerp(momentum, MUON_MOMENTUM)


def orthogonalise(matrices: Tensor, num_steps: int = 5) -> Tensor:
    """Each matrix of (N, R, C) with its singular values near 1, by Newton and Schulz's iteration: products only."""
    is_tall = matrices.size(-2) > matrices.size(-1)
    result = matrices.mT if is_tall else matrices
    result = result / (result.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    first, third, fifth = NEWTON_SCHULZ
    for _ in range(num_steps):
        gram = result @ result.mT
        result = first * result + (third * gram + fifth * gram @ gram) @ result
    return result.mT if is_tall else result

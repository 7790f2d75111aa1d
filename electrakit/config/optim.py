"""The settings of the optimizer and its learning rate schedule."""

from dataclasses import dataclass
from typing import Literal

from electrakit.common import official_adam
from electrakit.common.errors import UserError
from electrakit.config.base import Settings, check_at_least, check_below_one, check_positive, check_rates

OptimizerName = Literal["official_adam", "adamw", "lamb", "muon"]
Schedule = Literal["official", "linear", "cosine", "cosine_restarts", "constant"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Settings):
    """The optimizer and its learning rate schedule. The defaults are ELECTRA-small's."""

    name: OptimizerName = "official_adam"
    """`official_adam` has no bias correction; `lamb` scales the step of each layer; `muon` orthogonalises that of matrices (else AdamW)."""
    lr: float = 5e-4
    """Peak learning rate."""
    adam_lr: float | None = None
    """With `muon`: the peak rate of what AdamW trains, which are tables, heads, biases and norms. None: `lr`."""
    betas: tuple[float, float] = official_adam.BETAS
    """Decay rates of the two moving averages of the gradient."""
    eps: float = official_adam.EPS
    """Added to the denominator for numerical stability."""
    weight_decay: float = 0.01
    """Decoupled weight decay of all weights but biases and norms."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm. None: no clipping."""
    decoupled: bool = False
    """Update generator and discriminator separately (DeBERTaV3): each has its own clipping. Needs share=nothing or gdes."""
    schedule: Schedule = "official"
    """Decay of the learning rate after the warm-up; `official` is linear and decays during the warm-up too."""
    warmup_steps: int = 10_000
    """Steps in which the learning rate rises linearly from 0. With a budget, a tenth of it at most."""
    num_cycles: int = 4
    """Number of cycles of `cosine_restarts`."""

    def check(self) -> None:
        check_positive(self.values("lr", "adam_lr", "eps"))
        if self.adam_lr is not None and self.name != "muon":
            raise UserError(f"optim.adam_lr goes with optim.name=muon; {self.name} has one rate, optim.lr")
        check_rates(self.values("weight_decay"))
        for beta in self.betas:
            check_below_one({"betas": beta})
        check_positive(self.values("max_grad_norm"), "None switches it off")
        check_at_least(0, self.values("warmup_steps"))
        check_at_least(1, self.values("num_cycles"))

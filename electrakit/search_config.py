"""The settings of a search: what is tried, how often, and what a trial is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from tyro.conf import Suppress

from electrakit.errors import UserError
from electrakit.evaluate_config import FinetuneConfig


@dataclass(frozen=True, kw_only=True)
class SearchConfig(FinetuneConfig):
    """Search for good settings of one task with Optuna: lr, epochs, batch size, layer decay. One that is given is not searched."""

    trials: int = 20
    """Settings to try. The same command with more goes on."""
    lrs: tuple[float, ...] = (1e-5, 1e-3)
    """The lowest and the highest learning rate; between them by orders of magnitude."""
    epochs_tried: tuple[float, ...] = (2, 3, 5, 10)
    """The numbers of epochs to choose from."""
    batch_sizes: tuple[int, ...] = (16, 32, 64)
    """The batch sizes to choose from."""
    layer_decays: tuple[float, ...] = (0.7, 0.8, 0.9, 1.0)
    """The layer decays to choose from."""
    seeds: int = 1
    """Runs of each trial; its score is their median. More of them: less luck."""
    together: int = 4
    """Trials that are chosen at once and may run side by side. Unlike --workers, it decides what is tried."""
    seed: int = 0
    """Decides which settings are tried."""
    prune: bool = False
    """A trial whose first seeds are worse than the median of the others gets no more of them."""
    test: Suppress[Path | None] = None
    keep: Annotated[Literal["best", "all", "none"], Suppress] = "none"

    def checked(self) -> Self:
        config = super().checked()
        for name in ("lrs", "epochs_tried", "batch_sizes", "layer_decays"):
            self._check_choices(name)
        if len(self.lrs) != 2 or self.lrs[0] >= self.lrs[1]:
            raise UserError(f"--lrs must be the lowest and the highest learning rate, got {_listed(self.lrs)}")
        for name in ("trials", "together"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be 1 or more, got {getattr(self, name)}")
        if self.test is not None:
            raise UserError("a search does not look at test rows; leave test out")
        if self.prune and self.seeds < 2:
            raise UserError(
                f"--prune needs --seeds 2 or more, got {self.seeds}: it decides between the seeds of a trial"
            )
        if not self.searched():
            raise UserError("lr, epochs, batch size and layer decay are all given: nothing is left to search")
        return config

    def usual_out(self) -> Path:
        return super().usual_out() / "search"

    def _check_choices(self, name: str) -> None:
        flag, values = f"--{name.replace('_', '-')}", getattr(self, name)
        if not values or min(values) <= 0:
            raise UserError(f"{flag} must be numbers above 0, got {_listed(values)}")
        if len(set(values)) < len(values):
            raise UserError(f"{flag} names a value twice: {_listed(values)}")

    def searched(self) -> dict[str, tuple[float, ...]]:
        """What is searched: from the lowest to the highest lr, and among the choices of the others."""
        every: dict[str, tuple[float, ...]] = {
            "lr": self.lrs,
            "epochs": self.epochs_tried,
            "batch_size": self.batch_sizes,
            "layer_decay": self.layer_decays,
        }
        return {name: values for name, values in every.items() if name not in self.changes()}

    @classmethod
    def of(cls, model: Any, **settings: Any) -> Self:
        for name in ("lrs", "epochs_tried", "batch_sizes", "layer_decays"):
            if isinstance(settings.get(name), list):
                settings[name] = tuple(settings[name])
        return super().of(model, **settings)


def _listed(values: Any) -> str:
    return " ".join(map(str, values)) or "nothing"

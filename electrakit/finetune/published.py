"""Published scores on GLUE's dev sets, to compare with; they are never mixed with measured ones."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from electrakit.config.presets import alectra_small, electra_base, electra_small, electra_small_owt, mlm_small
from electrakit.config.pretrain import PretrainConfig
from electrakit.finetune.tasks import AVERAGED

PAPER = "Clark et al. 2020"


@dataclass(frozen=True)
class Published:
    """A model's scores in the order of AVERAGED, if they were published, and their mean."""

    name: str
    scores: tuple[float, ...]
    mean: float
    source: str
    training: Callable[[], PretrainConfig] | None = None
    """The settings of its training, where they are known well enough to count its compute."""
    fraction: float | None = None
    """The share of ELECTRA-Small's steps, for the rows of that one training."""


PUBLISHED = (
    Published("ELECTRA-Small++", (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7), 81.1, "google-research/electra"),
    Published(
        "ELECTRA-Small-OWT",
        (56.8, 88.3, 87.4, 86.8, 88.3, 78.9, 87.9, 68.5),
        80.36,
        "google-research/electra",
        electra_small,
    ),
    Published("ELECTRA-Small-OWT", (58.7, 88.0, 86.0, 86.2, 88.6, 80.4, 87.5, 67.5), 80.36, "richarddwang, mean of 10"),
    Published(
        "ELECTRA-Small-OWT, RoPE",
        (55.8, 90.5, 87.3, 86.6, 89.6, 81.2, 88.9, 62.7),
        80.3,
        "junnyu",
        functools.partial(electra_small, batch_size=256, steps=500_000),
    ),
    Published(
        "ELECTRA-Small-OWT", (56.3, 88.4, 75.0, 86.1, 89.1, 77.9, 83.0, 67.1), 77.9, "lmtuners", electra_small_owt
    ),
    Published("ALECTRA-Small-OWT", (50.6, 89.1, 86.3, 87.2, 89.1, 78.2, 85.9, 69.6), 79.5, "lmtuners", alectra_small),
    Published("ELECTRA-Large++", (), 89.5, "google-research/electra"),
    Published("ELECTRA-Base++", (), 87.5, "google-research/electra"),
    Published("ELECTRA-Small", (), 79.9, PAPER, electra_small, 1),
    Published("ELECTRA-Small, 50 % of the steps", (), 79.0, PAPER, electra_small, 0.5),
    Published("ELECTRA-Small, 25 % of the steps", (), 77.7, PAPER, electra_small, 0.25),
    Published("ELECTRA-Small, 12.5 % of the steps", (), 76.0, PAPER, electra_small, 0.125),
    Published("ELECTRA-Small, 6.25 % of the steps", (), 74.1, PAPER, electra_small, 0.0625),
    Published("BERT-Small", (), 75.1, PAPER, mlm_small),
)
# Only in the plot of GLUE against compute.
ELECTRA_BASE = Published("ELECTRA-Base", (), 85.0, PAPER, electra_base)
# Beside measured scores in plots: what can be reached with free text and a small model.
REFERENCE = PUBLISHED[1]
REFERENCE_SCORES = dict(zip(AVERAGED, REFERENCE.scores, strict=True))

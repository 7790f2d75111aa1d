"""Corrupted rows in, AUCs out: how well a network tells changed tokens from the others, whatever it was trained with."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from electrakit.finetune.metrics import ranks
from electrakit.measure.open import OpenNetwork
from electrakit.measure.results import Auc
from electrakit.measure.token_scores import token_scores

if TYPE_CHECKING:
    from electrakit.data.corruptions import CorruptedRows

MASKED_LM_TOKENS = 2_048
"""Changed tokens, and as many others, that a masked LM scores at most: it takes a pass for each."""


def corruption_scores(network: OpenNetwork, corruptions: Mapping[str, "CorruptedRows"]) -> dict[str, Auc]:
    """The AUC of each way of corruption: 1 if every changed token is less likely than every other one, 0.5 is chance."""
    found = {}
    for name, rows in corruptions.items():
        is_scored = rows.is_scored
        if network.head == "words":
            is_scored = spaced(is_scored & rows.is_changed) | spaced(is_scored & ~rows.is_changed)
        positions = [np.flatnonzero(row).tolist() for row in is_scored]
        scores = token_scores(network, [row.tolist() for row in rows.ids], positions, f"corruption {name}")
        found[name] = auc(rows.is_changed[is_scored], -np.concatenate(scores))
    return found


def spaced(is_chosen: np.ndarray, limit: int = MASKED_LM_TOKENS) -> np.ndarray:
    """At most so many of those that are true, evenly spaced."""
    places = np.flatnonzero(is_chosen)
    places = places[np.unique(np.linspace(0, len(places) - 1, min(limit, len(places))).round().astype(int))]
    kept = np.zeros(is_chosen.size, bool)
    kept[places] = True
    return kept.reshape(is_chosen.shape)


def auc(labels: np.ndarray, scores: np.ndarray) -> Auc:
    """The area under the ROC curve, exact, ties counting a half, and its standard error by DeLong et al. (1988)."""
    positive, negative = scores[labels], scores[~labels]
    num_positive, num_negative = len(positive), len(negative)
    if min(num_positive, num_negative) == 0 or not np.isfinite(scores).all():
        return Auc(float("nan"), float("nan"), len(scores))
    joint = ranks(scores)
    # For each positive the share of negatives below it, for each negative the share of positives above it.
    below = (joint[labels] - ranks(positive)) / num_negative
    above = 1 - (joint[~labels] - ranks(negative)) / num_positive
    variance = below.var(ddof=num_positive > 1) / num_positive + above.var(ddof=num_negative > 1) / num_negative
    return Auc(float(below.mean()), float(np.sqrt(variance)), len(scores))

"""Scores of predictions: 0 to 1, correlations -1 to 1, nan where a score is not defined."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Numbers = Sequence[float] | np.ndarray


def accuracy(labels: Numbers, predictions: Numbers) -> float:
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def f1(labels: Numbers, predictions: Numbers) -> float:
    """F1 of the second of two classes; 0 where none of it is predicted."""
    is_label, is_predicted = np.asarray(labels) == 1, np.asarray(predictions) == 1
    total = int(is_label.sum() + is_predicted.sum())
    return 2 * int((is_label & is_predicted).sum()) / total if total else 0.0


def matthews(labels: Numbers, predictions: Numbers) -> float:
    """Matthews correlation of any number of classes; 0 where one class only is predicted."""
    classes = np.unique(np.concatenate([labels, predictions]))
    is_label, is_predicted = (np.asarray(values)[:, None] == classes for values in (labels, predictions))
    num_rows, num_right = len(labels), int((is_label & is_predicted).sum())
    num_labels, num_predicted = is_label.sum(0), is_predicted.sum(0)
    spread = (num_rows**2 - int(num_labels @ num_labels)) * (num_rows**2 - int(num_predicted @ num_predicted))
    return (num_right * num_rows - int(num_labels @ num_predicted)) / math.sqrt(spread) if spread else 0.0


def pearson(labels: Numbers, predictions: Numbers) -> float:
    """nan where all predictions are the same."""
    first, second = np.asarray(labels, float), np.asarray(predictions, float)
    if len(first) < 2 or not np.isfinite(second).all() or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.clip(np.corrcoef(first, second)[0, 1], -1, 1))


def spearman(labels: Numbers, predictions: Numbers) -> float:
    """nan where all predictions are the same."""
    return pearson(ranks(labels), ranks(predictions)) if np.isfinite(predictions).all() else math.nan


def ranks(values: Numbers) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}

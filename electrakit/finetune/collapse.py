"""Recognises runs in which nothing was learned, by their predictions and by their training losses."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from electrakit.finetune.tasks import Task

# Of the first tenth's loss: if the last tenth's is above this share of it, nothing was learned.
NOT_FALLING = 0.98
# If this share of the predictions is one class, and no more are right than with one class for all: the same.
NEARLY_ALL = 0.95
# Where more of the labels are that class, nearly all of the predictions may be, too.
MOST_LABELS = 0.9


def one_class_reasons(task: Task, predictions: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> list[str]:
    """Signs in each split's predictions that nothing was learned; empty if there are none."""
    reasons = []
    for split, predicted in predictions.items():
        if task.is_regression and np.std(predicted) < 1e-3 * max(1e-9, np.std(labels[split])):
            reasons.append(f"all {split} predictions are {np.mean(predicted):.3g}")
        elif task.labels and len(set(labels[split].tolist())) > 1:
            reasons += _one_class(task.labels, split, predicted.astype(int), labels[split].astype(int))
    return reasons


def _one_class(names: tuple[str, ...], split: str, predicted: np.ndarray, labels: np.ndarray) -> list[str]:
    num_predicted, num_labels = (np.bincount(each, minlength=len(names)) for each in (predicted, labels))
    top, num_rows = int(num_predicted.argmax()), len(predicted)
    if num_predicted[top] == num_rows:
        return [f"all {split} predictions are {names[top]!r}"]
    is_better = (predicted == labels).sum() > num_labels.max()
    if num_predicted[top] < NEARLY_ALL * num_rows or num_labels[top] > MOST_LABELS * num_rows or is_better:
        return []
    return [
        f"{num_predicted[top]:,} of {num_rows:,} {split} predictions are {names[top]!r}, no better than one answer for all"
    ]


def loss_reasons(losses: Sequence[float]) -> list[str]:
    """The same for the training losses."""
    tenth = max(1, len(losses) // 10)
    first, last = float(np.mean(losses[:tenth])), float(np.mean(losses[-tenth:]))
    if not math.isfinite(last):
        return ["the training loss is not a number"]
    if len(losses) >= 10 and last > NOT_FALLING * first:
        return [f"the training loss did not fall: {first:.3f}, then {last:.3f}"]
    return []

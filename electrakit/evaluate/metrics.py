"""Labels and predictions in, scores out: 0 to 1, correlations -1 to 1, nan where a score is not defined."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

Numbers = Sequence[float] | Any


def accuracy(labels: Numbers, predictions: Numbers) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions))


def f1(labels: Numbers, predictions: Numbers) -> float:
    """Of the second of two classes; 0 where none of it is predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, zero_division=0.0))


def matthews(labels: Numbers, predictions: Numbers) -> float:
    """0 where one class only is predicted."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one class in labels and predictions
        return float(matthews_corrcoef(labels, predictions))


def pearson(labels: Numbers, predictions: Numbers) -> float:
    """nan where all predictions are the same."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def spearman(labels: Numbers, predictions: Numbers) -> float:
    """nan where all predictions are the same."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


def _correlation(function: Callable[..., Any], labels: Numbers, predictions: Numbers) -> float:
    import numpy

    if len(labels) < 2 or not numpy.isfinite(predictions).all():
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # constant input: nan says it
        return float(function(numpy.asarray(labels, float), numpy.asarray(predictions, float)).statistic)


METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}

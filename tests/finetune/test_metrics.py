"""Metrics, against scikit-learn, scipy, and formulas written out."""

import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics

from electrakit.finetune.metrics import METRICS, accuracy, f1, matthews, pearson, spearman


@pytest.mark.parametrize("seed", range(20))
def test_classification_metrics_are_those_of_scikit_learn_and_of_the_formulas(seed):
    random = np.random.default_rng(seed)
    labels, predictions = random.integers(0, 2, (2, random.integers(5, 60)))
    assert accuracy(labels, predictions) == sklearn.metrics.accuracy_score(labels, predictions)
    assert matthews(labels, predictions) == pytest.approx(sklearn.metrics.matthews_corrcoef(labels, predictions))
    both = int(((labels == 1) & (predictions == 1)).sum())
    expected = 2 * both / (labels.sum() + predictions.sum()) if labels.sum() + predictions.sum() else 0.0
    assert f1(labels, predictions) == pytest.approx(expected)
    if len(set(labels)) == len(set(predictions)) == 2:
        assert matthews(labels, predictions) == pytest.approx(np.corrcoef(labels, predictions)[0, 1])


@pytest.mark.parametrize("seed", range(20))
def test_matthews_of_several_classes_is_that_of_scikit_learn(seed):
    random = np.random.default_rng(seed)
    labels, predictions = random.integers(0, random.integers(1, 6), (2, random.integers(2, 60)))
    expected = sklearn.metrics.matthews_corrcoef(labels, predictions)
    assert matthews(labels, predictions) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_correlations_are_those_of_scipy_with_ties_too(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 11, 40) / 2
    predictions = labels + random.normal(0, 2, 40)
    assert pearson(labels, predictions) == pytest.approx(np.corrcoef(labels, predictions)[0, 1])
    assert pearson(labels, predictions) == pytest.approx(scipy.stats.pearsonr(labels, predictions).statistic)
    assert spearman(labels, predictions) == pytest.approx(scipy.stats.spearmanr(labels, predictions).statistic)
    assert spearman(labels.tolist(), predictions.tolist()) == spearman(labels, predictions)


@pytest.mark.filterwarnings("error")
def test_predictions_that_say_nothing_score_nothing_and_are_not_made_up():
    labels = [0, 1, 0, 1, 1]
    assert matthews(labels, [1] * 5) == 0.0
    assert f1(labels, [0] * 5) == 0.0
    assert f1([0] * 5, [0] * 5) == 0.0
    assert matthews([0] * 5, [0] * 5) == 0.0
    assert accuracy(labels, [1] * 5) == 0.6
    for correlation in (pearson, spearman):
        assert math.isnan(correlation([0.0, 1.0, 2.0], [3.0, 3.0, 3.0]))
        assert math.isnan(correlation([0.0, 1.0, 2.0], [3.0, math.nan, 1.0]))
        assert math.isnan(correlation([1.0], [1.0]))
        assert correlation([0.0, 1.0, 2.0], [5.0, 3.0, 1.0]) == pytest.approx(-1)


def test_the_table_names_them_all():
    assert set(METRICS) == {"accuracy", "f1", "matthews", "pearson", "spearman"}

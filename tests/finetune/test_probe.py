"""A head that begins as a linear probe: the one that scikit-learn finds, and better than none."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from electrakit.finetune.classifier import load_classifier
from electrakit.finetune.encode import EncodedRows
from electrakit.finetune.probe import PENALTY, fit_probe, start_with_probe
from electrakit.finetune.tasks import TASKS
from electrakit.finetune.train_job import row_loss
from tests.helpers.tiny_glue import VOCABULARY, write_model


def made_up_states() -> torch.Tensor:
    """As different in scale and mean as the states of an encoder are."""
    random = torch.Generator().manual_seed(0)
    scales = torch.rand(8, generator=random) * 5 + 0.1
    return torch.randn(200, 8, generator=random) * scales + torch.randn(8, generator=random)


def standardised(states: torch.Tensor) -> np.ndarray:
    return ((states - states.mean(0)) / states.std(0)).numpy()


def test_it_is_the_logistic_regression_of_scikit_learn():
    states = made_up_states()
    targets = (states @ torch.randn(8, 3, generator=torch.Generator().manual_seed(1))).argmax(1)
    weight, bias = fit_probe(states, 3, lambda logits: row_loss(TASKS["mnli"], logits, targets))
    theirs = LogisticRegression(C=1 / PENALTY, max_iter=1000, tol=1e-8).fit(standardised(states), targets.numpy())
    wanted = theirs.predict_proba(standardised(states))
    np.testing.assert_allclose((states @ weight.T + bias).softmax(-1).numpy(), wanted, atol=1e-3)


def test_it_is_the_ridge_regression_of_scikit_learn():
    states = made_up_states()
    targets = states[:, 0] + torch.randn(200, generator=torch.Generator().manual_seed(1))
    weight, bias = fit_probe(states, 1, lambda logits: row_loss(TASKS["stsb"], logits, targets))
    scaled = targets.numpy() / TASKS["stsb"].scale
    wanted = Ridge(alpha=PENALTY / 2).fit(standardised(states), scaled).predict(standardised(states))
    np.testing.assert_allclose((states @ weight.T + bias)[:, 0].numpy(), wanted, atol=1e-3)


@pytest.mark.parametrize(("family", "head"), [("electra", "official"), ("modernbert", "mean")])
def test_the_head_begins_no_worse_than_the_best_constant_and_the_encoder_is_as_it_was(tmp_path, family, head):
    random = np.random.default_rng(0)
    ids = [[2, *random.integers(5, len(VOCABULARY), random.integers(2, 9)), 3] for _ in range(60)]
    labels = np.array([row[1] % 2 for row in ids], np.float32)
    starts = np.cumsum([0, *map(len, ids)])
    rows = EncodedRows(ids=np.concatenate(ids).astype(np.int32), segments=None, starts=starts, labels=labels)
    classifier, _ = load_classifier(str(write_model(tmp_path / "encoder", family)), TASKS["rte"], head)
    before = {name: value.clone() for name, value in classifier.model.state_dict().items()}
    device, loss = torch.device("cpu"), partial(row_loss, TASKS["rte"])
    start_with_probe(classifier, rows, loss, 0, device, seed=1)
    first = classifier.output.weight.clone()
    assert all(torch.equal(value, before[name]) for name, value in classifier.model.state_dict().items())
    with torch.no_grad():
        logits = torch.cat([classifier(input_ids=torch.tensor([row])) for row in ids])
    targets, share = torch.from_numpy(labels), torch.tensor([1 - labels.mean(), labels.mean()])
    best_constant = loss(share.log().expand(len(labels), 2), targets).mean()
    assert loss(logits, targets).mean() < best_constant + 1e-4  # a new head begins above it
    start_with_probe(classifier, rows, loss, 0, device, seed=1)
    assert torch.equal(classifier.output.weight, first)

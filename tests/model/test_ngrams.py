"""The n-gram model against a slow reference, with and without the kernel."""

import numpy as np
import pytest
import torch

from electrakit.model import kernels
from electrakit.model.ngrams import SMOOTHING, WEIGHTS, Neighbours, NGrams

VOCAB, PAD = 30, 0


def text(seed: int = 0) -> np.ndarray:
    """Rows in which a token often follows the one with half its number."""
    chance = np.random.default_rng(seed)
    rows = chance.integers(5, VOCAB, (40, 12))
    rows[:, 1::2] = np.maximum(5, rows[:, ::2] // 2)
    return rows


def tables(rows: np.ndarray) -> dict[int, np.ndarray]:
    """By place: how often each word (column) was seen there beside each token (row)."""
    found = {}
    for distance in WEIGHTS:
        after = np.zeros((VOCAB, VOCAB), int)
        np.add.at(after, (rows[:, :-distance].ravel(), rows[:, distance:].ravel()), 1)
        found |= {-distance: after, distance: after.T}
    return found


def sparse(dense: np.ndarray) -> Neighbours:
    tokens, words = dense.nonzero()
    starts = np.searchsorted(tokens, np.arange(VOCAB + 1))
    return Neighbours(*map(torch.from_numpy, (starts, words.astype(np.int32), dense[tokens, words].astype(np.int32))))


def model_of(rows: np.ndarray) -> NGrams:
    tokens = torch.from_numpy(np.bincount(rows.ravel(), minlength=VOCAB))
    return NGrams(tokens, {place: sparse(dense) for place, dense in tables(rows).items()}, PAD)


def slow_logits(counted: np.ndarray, row: np.ndarray, position: int, without: int | None = None) -> np.ndarray:
    """By the formula. `without` takes one occurrence of this word, beside each of its neighbours, out of the counts."""
    frequencies = np.bincount(counted.ravel(), minlength=VOCAB) + 0.5
    frequencies = frequencies / frequencies.sum()
    logits = np.log(frequencies)
    for place, table in tables(counted).items():
        if 0 <= position + place < len(row):
            counts = table[row[position + place]].astype(float)
            if without is not None and counts[without]:
                counts[without] -= 1
            smooth = SMOOTHING * frequencies
            logits += WEIGHTS[abs(place)] * np.log((counts + smooth) / smooth)
    return logits


@pytest.fixture(params=["kernel", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(kernels, "problem", lambda: "switched off by the test")
    elif kernels.problem():
        pytest.skip(kernels.problem())
    return request.param


def test_logits_follow_the_formula_in_unseen_text(way):
    model, unseen = model_of(text()).eval(), text(1)
    unseen[:, -2:] = PAD
    positions = torch.from_numpy(np.random.default_rng(2).integers(0, 10, (len(unseen), 3)))
    logits = model(torch.from_numpy(unseen), positions, originals=torch.from_numpy(unseen).gather(1, positions))
    for row, chosen, found in zip(unseen, positions.tolist(), logits, strict=True):
        slow = np.stack([slow_logits(text(), row, position) for position in chosen])
        np.testing.assert_allclose(found, slow, rtol=1e-4, atol=1e-4)


def test_in_training_a_word_is_predicted_without_its_own_occurrence(way):
    rows = text()
    model = model_of(rows)
    positions = torch.from_numpy(np.random.default_rng(2).integers(0, 12, (len(rows), 3)))
    originals = torch.from_numpy(rows).gather(1, positions)
    logits = model(torch.from_numpy(rows), positions, originals)
    for row, chosen, found in zip(rows, positions.tolist(), logits, strict=True):
        slow = np.stack([slow_logits(rows, row, position, without=row[position]) for position in chosen])
        np.testing.assert_allclose(found, slow, rtol=1e-3, atol=2e-3)


def test_it_predicts_its_own_text_no_better_than_unseen_text_of_the_same_kind():
    rows, unseen = text(), text(1)
    model = model_of(rows)
    positions = torch.arange(12).expand(len(rows), -1)

    def loss(rows: np.ndarray) -> float:
        ids = torch.from_numpy(rows)
        return torch.nn.functional.cross_entropy(model(ids, positions, ids).flatten(0, 1), ids.flatten()).item()

    in_training, in_evaluation = loss(rows), (model.eval(), loss(rows))[1]
    assert in_evaluation < in_training
    assert in_training == pytest.approx(loss(unseen), rel=0.05)


def test_nothing_is_learned_or_saved():
    model = model_of(text())
    assert not list(model.parameters()) and not model.state_dict()

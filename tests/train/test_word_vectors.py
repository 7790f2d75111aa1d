"""Word vectors: PMI against its formula, the SVD against scipy's, and a text whose structure is known."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import svds

from electrakit.data.counts import count_pairs
from electrakit.train.word_vectors import CONTEXT_POWER, RARE, WINDOW, positive_pmi, truncated_svd, word_vectors
from tests.helpers.tiny_shards import write_rows

VOCAB = 60


@pytest.fixture
def rows() -> np.ndarray:
    """Each row is about one of two topics, whose words are 10 to 29 and 30 to 49."""
    chance = np.random.default_rng(0)
    return np.stack([chance.integers(*((10, 30) if number % 2 else (30, 50)), 16) for number in range(200)])


@pytest.fixture
def counts(tmp_path, rows):
    return count_pairs(write_rows(tmp_path / "shards", VOCAB, train=[rows]), range(1, WINDOW + 1))


def test_positive_pmi_is_that_of_the_formula(counts, rows):
    together = np.zeros((VOCAB, VOCAB))
    for row in rows.tolist():
        for place, word in enumerate(row):
            for other in row[max(0, place - WINDOW) : place] + row[place + 1 : place + WINDOW + 1]:
                together[word, other] += 1
    words, contexts = together.sum(1), together.sum(0) ** CONTEXT_POWER
    with np.errstate(divide="ignore", invalid="ignore"):
        pmi = np.log(together / words[:, None] / (contexts / contexts.sum()))
    expected = np.maximum(0, np.nan_to_num(pmi, neginf=0))
    np.testing.assert_allclose(positive_pmi(counts).to_dense(), expected, rtol=1e-5, atol=1e-6)


def test_the_svd_is_that_of_scipy():
    chance = np.random.default_rng(1)
    dense = chance.normal(size=(80, 12)) * 2.0 ** -np.arange(12) @ chance.normal(size=(12, 80))
    dense[np.abs(dense) < 0.3] = 0
    left, values = truncated_svd(torch.from_numpy(dense).float().to_sparse_csr(), 6)
    expected_left, expected, _ = svds(dense, k=6, random_state=0)
    np.testing.assert_allclose(values, expected[::-1], rtol=1e-3)
    overlap = np.abs(np.sum(left.numpy() * expected_left[:, ::-1], axis=0))
    np.testing.assert_allclose(overlap, 1, atol=1e-2)


def test_words_of_one_topic_are_near_each_other(counts):
    vectors, is_known = word_vectors(counts, 4)
    assert is_known.tolist() == (counts.tokens >= RARE).tolist()
    assert vectors[is_known].mean(0).abs().max() < 1e-5
    assert vectors[is_known].pow(2).mean().sqrt().item() == pytest.approx(1)
    near = vectors @ vectors.T
    assert (near[10:30, 10:30] > 0).all() and (near[10:30, 30:50] < 0).all()


def test_vectors_may_have_more_numbers_than_there_are_words_and_are_the_same_each_time(counts):
    first, second = word_vectors(counts, 100)[0], word_vectors(counts, 100)[0]
    assert first.shape == (VOCAB, 100) and torch.equal(first, second) and first.isfinite().all()

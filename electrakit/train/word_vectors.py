"""Word vectors from counts: a truncated SVD of positive PMI (Levy and Goldberg 2014; Levy, Goldberg and Dagan 2015)."""

import warnings

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit.data.counts import TokenCounts

WINDOW = 4
"""Words at this distance and nearer count as context."""
CONTEXT_POWER = 0.75
"""Of the frequencies of contexts: it lowers the PMI of rare ones."""
RARE = 5
"""A word that was seen less often keeps its random vector."""
OVERSAMPLING, POWER_STEPS = 16, 3  # Halko, Martinsson and Tropp 2011


def word_vectors(counts: TokenCounts, size: int) -> tuple[Tensor, Tensor]:
    """A vector for each token (V, size), with mean 0 and rms 1 over the words that have one, and which have one: bool (V,)."""
    is_known = torch.from_numpy(counts.tokens >= RARE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse", UserWarning)  # torch calls sparse tensors a beta
        left, values = truncated_svd(positive_pmi(counts), size)
    vectors = left * values.sqrt()
    vectors -= vectors[is_known].mean(0)
    return vectors / vectors[is_known].pow(2).mean().sqrt(), is_known


def positive_pmi(counts: TokenCounts) -> Tensor:
    """max(0, log p(word, context) / (p(word) p(context))), sparse (V, V), float32."""
    vocab_size = len(counts.tokens)
    together = None
    for pairs in (*counts.after.values(), *counts.before.values()):
        parts = [torch.from_numpy(part) for part in (pairs.starts, pairs.others, pairs.counts)]
        one = torch.sparse_csr_tensor(parts[0], parts[1].long(), parts[2].float(), (vocab_size, vocab_size))
        together = one if together is None else together + one
    assert together is not None
    starts, contexts, numbers = together.crow_indices(), together.col_indices(), together.values().double()
    words = torch.repeat_interleave(torch.arange(vocab_size), starts.diff())
    totals = torch.zeros(vocab_size, dtype=torch.float64).index_add_(0, words, numbers)
    expected = totals.pow(CONTEXT_POWER) / totals.pow(CONTEXT_POWER).sum().clamp(min=1)
    pmi = (numbers / (totals[words] * expected[contexts])).log_().float()
    is_positive = pmi > 0
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), is_positive.cumsum(0)])[starts]
    return torch.sparse_csr_tensor(starts, contexts[is_positive], pmi[is_positive], (vocab_size, vocab_size))


def truncated_svd(matrix: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The leading left singular vectors (V, size) and singular values of a sparse square matrix, by random projections."""
    transposed = matrix.t().to_sparse_csr()
    # numpy's generator: torch's state is the run's, and a run without counted vectors must not differ.
    start = np.random.default_rng(0).standard_normal((len(matrix), min(size + OVERSAMPLING, len(matrix))))
    basis = torch.linalg.qr(matrix @ torch.from_numpy(start).float()).Q
    for _ in range(POWER_STEPS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(transposed @ basis).Q).Q
    left, values, _ = torch.linalg.svd((transposed @ basis).T, full_matrices=False)
    missing = (0, max(0, size - len(values)))  # where a vocabulary is smaller than the vectors
    return F.pad((basis @ left)[:, :size], missing), F.pad(values[:size], missing)

"""REINFORCE for a generator that is trained to deceive its discriminator (Clark et al. 2020, appendix F)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from electrakit.objective.output import ratio
from electrakit.objective.predict_masked import Sampling


def log_probabilities(logits: Tensor, sampled: Tensor, sampling: Sampling) -> Tensor:
    """Of the sampled tokens (B, K) in the distribution that they come from, from logits (B, K, V): (B, K)."""
    scores = logits.float() / sampling.temperature
    for token in sampling.without:
        scores[..., token] = -torch.inf
    return -F.cross_entropy(scores.flatten(0, -2), sampled.flatten(), reduction="none").view_as(sampled)


def advantages(rewards: Tensor, counts: Tensor) -> Tensor:
    """The rewards (B, K) above the baseline, which is the mean of the row's other positions that count; 0 where there is no other.

    Over rows, it would depend on how they are divided into micro-batches and processes.
    """
    rewards = rewards * counts
    num_others = counts.sum(-1, keepdim=True) - 1
    others = (rewards.sum(-1, keepdim=True) - rewards) / num_others.clamp(min=1)
    return (rewards - others) * (counts & (num_others > 0))


def with_gradient_of_reward(loss: Tensor, log_probs: Tensor, rewards: Tensor, counts: Tensor) -> Tensor:
    """The value of `loss`, which is a mean over the positions that count, with the gradient that raises the expected reward."""
    counted_log_probs = log_probs.masked_fill(~counts, 0)
    surrogate = -ratio(advantages(rewards.detach(), counts) * counted_log_probs, counts)
    return loss.detach() + surrogate - surrogate.detach()

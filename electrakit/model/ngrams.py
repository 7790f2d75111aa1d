"""An n-gram model of the neighbours on both sides, made from counts: a generator without a network, or the prior of one."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from electrakit.model import kernels

SMOOTHING = 1000.0
"""In occurrences of a neighbour: one that was seen so often counts as much as the frequencies of the words."""
WEIGHTS = {1: 1.0, 2: 0.5}
"""Of a neighbour, by its distance. Together they have 3.67 nats and 30 % right on unseen text of which all of them are visible."""


class Neighbours(NamedTuple):
    """The words that were seen at a place beside each token, as a sparse matrix (V, V) by rows."""

    starts: Tensor
    """int64 (V + 1,): where the entries of each token begin."""
    words: Tensor
    """int32 (N,)"""
    counts: Tensor
    """int32 (N,)"""


class NGrams(nn.Module):
    """Logits of the word at a position from the tokens around it, which may be [MASK].

    log p(w) + sum over neighbours n of weight * log((count(n, w) + s p(w)) / (s p(w)))

    This is log p(w) plus the smoothed PMI of w with each neighbour, without the terms that are equal for all words. So it is sparse:
    a word that was never seen beside a neighbour gets nothing from it. In training, the counts have the very text that is predicted.
    Each word is then predicted without its own occurrence, as if that row had not been counted.

    There is nothing to learn or to save: a resumed run counts again.
    """

    gathers_positions = True
    wants_kernels = False
    """As of `Network`."""
    frequencies: Tensor
    scales: Tensor

    def __init__(self, tokens: Tensor, neighbours: Mapping[int, Neighbours], pad_token_id: int = 0) -> None:
        """tokens: how often each was seen (V,), 0 for special ones. neighbours: by place, such as -1 for the token before."""
        super().__init__()
        self.pad_token_id = pad_token_id  # it was seen beside nothing
        self.vocab_size = len(tokens)
        probabilities = (tokens.double() + 0.5) / (tokens.double() + 0.5).sum()
        self.register_buffer("frequencies", probabilities.log().float(), persistent=False)
        self.register_buffer("scales", (1 / (SMOOTHING * probabilities)).float(), persistent=False)
        self.places = tuple(neighbours)
        for place, (starts, words, counts) in neighbours.items():
            gains = torch.log1p(counts * self.scales[words.long()]) * WEIGHTS[abs(place)]
            for name, tensor in {"starts": starts.long(), "words": words.int(), "gains": gains}.items():
                self.register_buffer(self.name_of(name, place), tensor, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, originals: Tensor | None = None) -> Tensor:
        """Logits at the positions (B, K) of ids (B, T): (B, K, V). originals (B, K): in training, the tokens to be predicted there."""
        rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(positions)
        flat = None if originals is None else originals.flatten()
        return self.logits_at(ids, rows.flatten(), positions.flatten(), flat).view(*positions.shape, self.vocab_size)

    def logits_at(self, ids: Tensor, rows: Tensor, positions: Tensor, originals: Tensor | None = None) -> Tensor:
        """The same at M single places: (M, V)."""
        result = self.frequencies.repeat(len(rows), 1)
        leave_out = originals if self.training and originals is not None else torch.full_like(positions, -1)
        for place in self.places:
            beside = positions + place
            is_inside = (beside >= 0) & (beside < ids.size(1))
            tokens = torch.where(is_inside, ids[rows, beside.clamp(0, ids.size(1) - 1)], self.pad_token_id)
            starts, words, gains = (self.get_buffer(self.name_of(name, place)) for name in ("starts", "words", "gains"))
            weight = WEIGHTS[abs(place)]
            if self.can_use_kernels(ids):
                arguments = (tokens, leave_out, starts, words, gains, self.scales, weight, result, *result.shape)
                kernels.call("add_gains", (torch.float32, torch.float32), *arguments)
            else:
                self.add_gains(result, tokens, leave_out, starts, words, gains, weight)
        return result

    def add_gains(
        self,
        result: Tensor,
        tokens: Tensor,
        leave_out: Tensor,
        starts: Tensor,
        words: Tensor,
        gains: Tensor,
        weight: float,
    ) -> None:
        """What the neighbours `tokens` (M,) add, without the kernel."""
        numbers = starts[tokens + 1] - starts[tokens]
        first = starts[tokens] - numbers.cumsum(0) + numbers
        of_place = torch.repeat_interleave(torch.arange(len(tokens), device=tokens.device), numbers)
        entries = torch.arange(len(of_place), device=tokens.device) + first[of_place]
        found, added = words[entries].long(), gains[entries]
        is_own = found == leave_out[of_place]
        added = torch.where(is_own, self.without_one(added, found, weight), added)
        result.view(-1).index_add_(0, of_place * self.vocab_size + found, added)

    def without_one(self, gains: Tensor, words: Tensor, weight: float) -> Tensor:
        """The gain of a count that is lower by one."""
        return torch.log1p((torch.expm1(gains / weight) - self.scales[words]).clamp(min=0)) * weight

    def can_use_kernels(self, ids: Tensor) -> bool:
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        return self.wants_kernels and ids.device.type == "cpu" and not is_traced and kernels.problem() is None

    @staticmethod
    def name_of(name: str, place: int) -> str:
        return f"{name}_{'before' if place < 0 else 'after'}_{abs(place)}"

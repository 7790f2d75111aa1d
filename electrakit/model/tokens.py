"""Ids in, the tokens of a batch as layers see them out, with the steps that depend on that.

A `Grid` is rows of equal length, padding and all, in plain torch: for any device and compiler. A `Line` is the real tokens alone, one
row behind the other, with kernels for the CPU: there, padding costs nothing. Both compute the same.

Shapes: B rows, T tokens, N real tokens, H hidden. A "batch" of H numbers is (B, T, H) in a grid, (N, H) in a line.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.model import kernels
from electrakit.model.layers import rotate


class Grid(NamedTuple):
    """Rows of equal length."""

    ids: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    attended: Tensor  # (B, T) bool

    @classmethod
    def of(cls, ids: Tensor, pad: int, sep: int | None) -> "Grid":
        return cls(ids, segments(ids, pad, sep), ids != pad)

    def look_up(self, positions: nn.Embedding) -> Tensor:
        """The embedding of each token's position."""
        return positions.weight[: self.ids.size(1)]

    def attend(
        self, hidden: Tensor, qkv: nn.Linear, num_heads: int, dropout: float, turn: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Each token mixes the values of the real tokens in its row; `turn` gives query and key their rotary positions.

        The mask stays boolean and (B, 1, 1, T), never T x T (15 to 20 % slower in one CPU run), and is always there, padding or not:
        one graph for every batch. A row of nothing but padding gives zeros, not NaN.
        """
        heads = qkv(hidden).unflatten(-1, (3, num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, N, T, D) each
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        mask = self.attended[:, None, None]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return mixed.transpose(1, 2).flatten(2)

    def dropout(self, batch: Tensor, rate: float) -> Tensor:
        return F.dropout(batch, rate, training=rate > 0)

    def add_norm(self, stream: Tensor, inner: Tensor, out: nn.Linear, norm: nn.LayerNorm, dropout: float) -> Tensor:
        """The norm of the stream with dropout(out(inner)) added to it."""
        return self.add_and_norm(stream, inner, out, norm, dropout)[1]

    def add_and_norm(
        self, stream: Tensor, inner: Tensor, out: nn.Linear, norm: nn.LayerNorm, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """The stream with dropout(out(inner)) added to it, and the norm of that."""
        total = stream + self.dropout(out(inner), dropout)
        return total, norm(total)

    def gelu(self, hidden: Tensor, into: nn.Linear) -> Tensor:
        return F.gelu(into(hidden))

    def gated_gelu(self, hidden: Tensor, into: nn.Linear, dropout: float) -> Tensor:
        """GELU of the first half, times the second half."""
        value, gate = into(hidden).chunk(2, dim=-1)
        return self.dropout(F.gelu(value) * gate, dropout)

    def as_grid(self, batch: Tensor) -> Tensor:
        """A batch as rows: (B, T, ...)."""
        return batch

    def at(self, batch: Tensor, positions: Tensor) -> Tensor:
        """What a batch has at positions (B, K): (B, K, H)."""
        return batch.gather(1, positions[..., None].expand(-1, -1, batch.size(-1)))

    def at_some(self, batch: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
        """What it has at those of the positions that count: (M, H)."""
        return self.at(batch, positions)[counts]


class Line(NamedTuple):
    """The real tokens, one row behind the other. Methods as those of `Grid`."""

    ids: Tensor  # (N,)
    segments: Tensor  # (N,)
    attended: Tensor  # (B, T) bool
    places: Tensor  # (N,): in the flat grid
    starts: Tensor  # (B + 1,): where each row begins

    @classmethod
    def of(cls, ids: Tensor, pad: int, sep: int | None) -> "Line":
        attended = ids != pad
        places = attended.flatten().nonzero().squeeze(-1)
        starts = F.pad(attended.sum(-1).cumsum(0), (1, 0))
        return cls(ids.flatten()[places], segments(ids, pad, sep).flatten()[places], attended, places, starts)

    def look_up(self, positions: nn.Embedding) -> Tensor:
        return positions(self.places % self.attended.size(1))

    def attend(
        self, hidden: Tensor, qkv: nn.Linear, num_heads: int, dropout: float, turn: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        mixed = F.linear(hidden, qkv.weight)
        if turn is not None:
            columns = self.places % self.attended.size(1)
            cosine, sine = (part[columns, None, None, : part.size(-1) // 2] for part in turn)  # they stand there twice
            mixed = kernels.Rotate.apply(mixed, cosine, sine, num_heads)
        return kernels.Attention.apply(mixed, qkv.bias, self.starts, num_heads, dropout)

    def dropout(self, batch: Tensor, rate: float) -> Tensor:
        """Random bytes, two for each number: torch's own generator takes ten times as long on a CPU."""
        if not rate:
            return batch
        limit = round(rate * 2**16)
        noise = np.random.SFC64(kernels.seed_of_dropout(rate)).random_raw(-(-batch.numel() // 4)).view(np.int16)
        is_kept = torch.from_numpy(noise[: batch.numel()]).view_as(batch) >= limit - 2**15
        return batch * (is_kept * (1 / (1 - limit / 2**16))).to(batch.dtype)

    def add_norm(self, stream: Tensor, inner: Tensor, out: nn.Linear, norm: nn.LayerNorm, dropout: float) -> Tensor:
        added = F.linear(inner, out.weight)
        return kernels.AddNorm.apply(stream, added, out.bias, norm.weight, norm.bias, norm.eps, dropout, False)[1]

    def add_and_norm(
        self, stream: Tensor, inner: Tensor, out: nn.Linear, norm: nn.LayerNorm, dropout: float
    ) -> tuple[Tensor, Tensor]:
        added = F.linear(inner, out.weight)
        return kernels.AddNorm.apply(stream, added, out.bias, norm.weight, norm.bias, norm.eps, dropout, True)

    def gelu(self, hidden: Tensor, into: nn.Linear) -> Tensor:
        return kernels.Gelu.apply(F.linear(hidden, into.weight), into.bias, False, 0.0)

    def gated_gelu(self, hidden: Tensor, into: nn.Linear, dropout: float) -> Tensor:
        return kernels.Gelu.apply(F.linear(hidden, into.weight), into.bias, True, dropout)

    def as_grid(self, batch: Tensor) -> Tensor:
        flat = batch.new_zeros(self.attended.numel(), *batch.shape[1:])
        return flat.index_copy(0, self.places, batch).unflatten(0, tuple(self.attended.shape))

    def at(self, batch: Tensor, positions: Tensor) -> Tensor:
        """At padding: 0."""
        is_real = self.attended.gather(1, positions)
        found = batch.new_zeros(positions.numel(), batch.size(-1))
        real = is_real.flatten().nonzero().squeeze(-1)
        return found.index_copy(0, real, self.at_some(batch, positions, is_real)).view(*positions.shape, -1)

    def at_some(self, batch: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
        numbers = self.attended.flatten().cumsum(0).view_as(self.attended) - 1
        return batch.index_select(0, numbers.gather(1, positions)[counts])


Tokens = Grid | Line


def segments(ids: Tensor, pad: int, sep: int | None) -> Tensor:
    """0 up to and with the first [SEP], 1 behind it, 0 for padding: (B, T)."""
    if sep is None:
        return torch.zeros_like(ids)
    is_sep = (ids == sep).long()
    num_before = is_sep.cumsum(-1) - is_sep
    return ((num_before > 0) & (ids != pad)).long()

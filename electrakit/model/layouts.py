"""The two layouts of a batch's tokens, padded and packed, and the operations that differ between them.

`PaddedTokens` are rows of equal length in plain torch, for any device and compiler. `PackedTokens` are the real tokens, one row after the
other (unpadded), with kernels for the CPU: padding costs nothing there. Both compute the same.

Shapes: B rows, T tokens, N packed tokens, K positions, H hidden size, D head size. A hidden state is (B, T, H) padded, (N, H) packed.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.model import kernels
from electrakit.model.parts import Rope, gather, rope_tables, rotate

TOKENS_MULTIPLE, CHOSEN_MULTIPLE = 256, 64
"""In bf16 oneDNN compiles code for each shape of a product. So that there are few, packed tokens are padded to a multiple."""


class Distances(NamedTuple):
    """What the distances between tokens add to attention: R rows, near distances have one each, far ones share."""

    table: Tensor  # (R, H); in a layer (R, 2 H): the distances' queries and keys
    row_of_distance: Tensor  # (2 T - 1,): of query position minus key position, from -(T - 1) up


class PaddedTokens(NamedTuple):
    """Rows of equal length."""

    ids: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    attended: Tensor  # (B, T) bool
    visible: Tensor | None = None  # (B, 1, T, T) bool: what each token attends to; by default all that is attended

    @classmethod
    def of(cls, ids: Tensor, pad: int, sep: int | None) -> "PaddedTokens":
        attended = ids != pad
        return cls(ids, segment_ids(ids, attended, sep), attended)

    def embed_positions(self, table: nn.Embedding) -> Tensor:
        return table.weight[: self.ids.size(1)]

    def rope(self, head_size: int, base: float) -> Rope:
        """For `attend`: (T, D) each."""
        return rope_tables(self.ids.size(1), head_size, base, self.ids.device)

    def attend(
        self, hidden: Tensor, qkv: nn.Linear, num_heads: int, dropout: float, rope: Rope | None = None
    ) -> Tensor:
        """Self-attention to the real tokens of each row, before the output projection.

        The mask stays boolean and (B, 1, 1, T); T x T, only for `visible`, was 15 to 20 % slower in one CPU run. It is passed without
        padding too: one graph for every batch. A row of nothing but padding gives zeros, not NaN.
        """
        heads = qkv(hidden).unflatten(-1, (3, num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, T, D) each
        if rope is not None:
            query, key = rotate(query, rope), rotate(key, rope)
        mask = self.attended[:, None, None] if self.visible is None else self.visible
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return mixed.transpose(1, 2).flatten(2)

    def attend_with_distances(
        self, query: Tensor, hidden: Tensor, qkv: nn.Linear, num_heads: int, dropout: float, distances: Distances
    ) -> Tensor:
        """Attention of the query states to the hidden states, with scores of contents, and of each side's content with the distance.

        The two with distances are products with one row for every distance, of which a view has the T x T that are wanted: no gather.
        """
        heads = project(query, hidden, qkv, qkv.bias).unflatten(-1, (3, num_heads, -1))
        queries, keys, values = heads.permute(2, 3, 0, 1, 4).contiguous().unbind(0)  # (heads, B, T, D) each
        # One row more than distances: a row of 2 T is cut into pieces of 2 T - 1.
        rows = F.pad(distances.row_of_distance, (0, 1))
        places = distances.table.unflatten(-1, (2, num_heads, -1)).permute(1, 2, 3, 0)  # (2, heads, D, R)
        scale = (3 * queries.size(-1)) ** -0.5
        queries = queries * scale
        from_key, from_query = (
            places[0][..., rows] * scale,
            places[1][..., F.pad(distances.row_of_distance.flip(0), (0, 1))],
        )
        scores = queries @ keys.transpose(-1, -2)
        scores = scores + skew((queries.flatten(1, 2) @ from_query).view(*queries.shape[:3], -1))
        scores = scores + skew((keys.flatten(1, 2) @ from_key).view(*keys.shape[:3], -1)).transpose(-1, -2)
        scores = scores.masked_fill(~self.attended[:, None], torch.finfo(scores.dtype).min)
        weights = self.dropout(scores.softmax(-1), dropout).to(values.dtype)
        return (weights @ values).permute(1, 2, 0, 3).flatten(2)

    def dropout(self, hidden: Tensor, rate: float) -> Tensor:
        return F.dropout(hidden, rate, training=rate > 0)

    def add_norm(
        self, stream: Tensor, inner: Tensor, out: nn.Linear, norm: nn.LayerNorm, dropout: float, needs_sum: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The residual stream plus dropout(out(inner)), and the norm of that sum. Packed, the sum is None unless it is needed."""
        total = stream + self.dropout(out(inner), dropout)
        return total, norm(total)

    def gelu(self, hidden: Tensor, into: nn.Linear) -> Tensor:
        return F.gelu(into(hidden))

    def gated_gelu(self, hidden: Tensor, into: nn.Linear, dropout: float) -> Tensor:
        """GELU of the first half, times the second half."""
        value, gate = into(hidden).chunk(2, dim=-1)
        return self.dropout(F.gelu(value) * gate, dropout)

    def to_padded(self, values: Tensor) -> Tensor:
        """One value for each token, as (B, T, ...)."""
        return values

    def from_padded(self, values: Tensor) -> Tensor:
        return values

    def gather(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """The hidden states at positions (B, K): (B, K, H)."""
        return gather(hidden, positions)


class PackedTokens(NamedTuple):
    """The real tokens, one row after the other. Methods as of `PaddedTokens`.

    In bf16 padding follows up to a multiple, as a row of its own, so that every state is computed; nothing reads those of padding.
    """

    ids: Tensor  # (N,)
    segments: Tensor  # (N,)
    attended: Tensor  # (B, T) bool
    indices: Tensor  # (N,): of the real tokens in the flattened (B, T); then zeros
    starts: Tensor  # (B + 1,), with padding (B + 2,): where each row begins, and at last N
    num_real: int  # tokens without padding
    chosen_multiple: int  # to which chosen tokens are padded

    @classmethod
    def of(cls, ids: Tensor, pad: int, sep: int | None) -> "PackedTokens":
        attended = ids != pad
        real = attended.flatten().nonzero().squeeze(-1)
        is_half = torch.is_autocast_enabled("cpu")
        num_padding = -len(real) % TOKENS_MULTIPLE if is_half else 0
        starts = F.pad(attended.sum(-1).cumsum(0), (1, 0))
        if num_padding:
            starts = F.pad(starts, (0, 1), value=len(real) + num_padding)
        packed_ids = F.pad(ids.flatten()[real], (0, num_padding), value=pad)
        packed_segments = F.pad(segment_ids(ids, attended, sep).flatten()[real], (0, num_padding))
        indices, chosen_multiple = F.pad(real, (0, num_padding)), CHOSEN_MULTIPLE if is_half else 1
        return cls(packed_ids, packed_segments, attended, indices, starts, len(real), chosen_multiple)

    def embed_positions(self, table: nn.Embedding) -> Tensor:
        return table(self.indices % self.attended.size(1))

    def rope(self, head_size: int, base: float) -> Rope:
        """(N, D / 2) each: the tables hold each angle twice."""
        num_tokens = self.attended.size(1)
        cosine, sine = rope_tables(num_tokens, head_size, base, self.ids.device)
        positions = self.indices % num_tokens
        return cosine[:, : head_size // 2][positions], sine[:, : head_size // 2][positions]

    def attend(
        self, hidden: Tensor, qkv: nn.Linear, num_heads: int, dropout: float, rope: Rope | None = None
    ) -> Tensor:
        heads = F.linear(hidden, qkv.weight)
        if rope is not None:
            heads = kernels.Rotate.apply(heads, *rope, num_heads)
        return kernels.Attention.apply(heads, qkv.bias, self.starts, num_heads, dropout)

    def attend_with_distances(
        self, query: Tensor, hidden: Tensor, qkv: nn.Linear, num_heads: int, dropout: float, distances: Distances
    ) -> Tensor:
        heads = project(query, hidden, qkv, None)
        more = (distances.table.to(heads.dtype), distances.row_of_distance, self.indices % self.attended.size(1))
        return kernels.Attention.apply(heads, qkv.bias, self.starts, num_heads, dropout, *more)

    def dropout(self, hidden: Tensor, rate: float) -> Tensor:
        """With two random bytes per element from numpy: torch's generator takes ten times as long on a CPU."""
        if not rate:
            return hidden
        limit = round(rate * 2**16)
        noise = np.random.SFC64(kernels.dropout_seed(rate)).random_raw(-(-hidden.numel() // 4)).view(np.int16)
        is_kept = torch.from_numpy(noise[: hidden.numel()]).view_as(hidden) >= limit - 2**15
        return hidden * (is_kept * (1 / (1 - limit / 2**16))).to(hidden.dtype)

    def add_norm(
        self, stream: Tensor, inner: Tensor, out: nn.Linear, norm: nn.LayerNorm, dropout: float, needs_sum: bool = False
    ) -> tuple[Tensor, Tensor]:
        added = F.linear(inner, out.weight)
        return kernels.AddNorm.apply(stream, added, out.bias, norm.weight, norm.bias, norm.eps, dropout, needs_sum)

    def gelu(self, hidden: Tensor, into: nn.Linear) -> Tensor:
        return kernels.Gelu.apply(F.linear(hidden, into.weight), into.bias, False, 0.0)

    def gated_gelu(self, hidden: Tensor, into: nn.Linear, dropout: float) -> Tensor:
        return kernels.Gelu.apply(F.linear(hidden, into.weight), into.bias, True, dropout)

    def to_padded(self, values: Tensor) -> Tensor:
        flat = values.new_zeros(self.attended.numel(), *values.shape[1:])
        real = slice(self.num_real)
        return flat.index_copy(0, self.indices[real], values[real]).unflatten(0, tuple(self.attended.shape))

    def from_padded(self, values: Tensor) -> Tensor:
        return values.flatten(0, 1).index_select(0, self.indices)

    def gather(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Zeros at padding."""
        is_real = self.attended.gather(1, positions)
        found = hidden.new_zeros(positions.numel(), hidden.size(-1))
        real = is_real.flatten().nonzero().squeeze(-1)
        chosen = self.gather_counted(hidden, positions, is_real)[: len(real)]
        return found.index_copy(0, real, chosen).view(*positions.shape, -1)

    def gather_counted(self, hidden: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
        """The hidden states at the positions where counts (B, K) is true: (M, H), in bf16 padded with the first state."""
        packed_indices = self.attended.flatten().cumsum(0).view_as(self.attended) - 1
        chosen = packed_indices.gather(1, positions)[counts]
        return hidden.index_select(0, F.pad(chosen, (0, -len(chosen) % self.chosen_multiple)))


Tokens = PaddedTokens | PackedTokens


def segment_ids(ids: Tensor, attended: Tensor, sep: int | None) -> Tensor:
    """The segment of each token, as token_type_ids: 0 up to the first [SEP] included, then 1; 0 at padding. (B, T)"""
    if sep is None:
        return torch.zeros_like(ids)
    is_sep = (ids == sep).long()
    num_before = is_sep.cumsum(-1) - is_sep
    return ((num_before > 0) & attended).long()


def project(query: Tensor, hidden: Tensor, qkv: nn.Linear, bias: Tensor | None) -> Tensor:
    """Queries of the query states, keys and values of the hidden ones, which may be the same: (..., 3 H)."""
    if query is hidden:
        return F.linear(hidden, qkv.weight, bias)
    size = qkv.in_features
    asked = F.linear(query, qkv.weight[:size], None if bias is None else bias[:size])
    return torch.cat([asked, F.linear(hidden, qkv.weight[size:], None if bias is None else bias[size:])], dim=-1)


def skew(scores: Tensor) -> Tensor:
    """(..., T, 2 T) -> (..., T, T): element j of row i is the one at j - i + T - 1 there. A view."""
    size = scores.size(-2)
    return scores.flatten(-2)[..., size - 1 : -1].unflatten(-1, (size, 2 * size - 1))[..., :size]

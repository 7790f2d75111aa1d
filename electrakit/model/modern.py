"""Ids in, hidden states out: the `modern` body, which is transformers' ModernBERT with global attention in every layer.

Pre-norm, rotary positions, gated GELU, no biases. There are no segments: [SEP] itself says where B begins.
Shapes: B rows, T tokens, H hidden, D numbers of one head.
"""

from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.model.layers import SIGMA, attend, head, initialise, run, split_heads
from electrakit.network_config import NetworkConfig

EPSILON = 1e-5


class ModernBody(nn.Module):
    """Embeddings, layers, a last norm. `config.dropout` is after the embeddings and inside the feed-forward."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False  # gradient checkpointing of the layers
        self.embeddings = ModernEmbeddings(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(ModernLayer(config, is_first=number == 0) for number in range(config.num_layers))
        self.norm = make_norm(config)
        initialise(self.embeddings)

    def forward(self, ids: Tensor) -> Tensor:
        attended = ids != self.config.pad_token_id
        head_size = self.config.hidden_size // self.config.num_heads
        turn = rotations(ids.size(1), head_size, self.config.rotary_base, ids.device)
        hidden = self.dropout(self.embeddings(ids))
        for layer in self.layers:
            hidden = run(layer, hidden, attended, turn, recompute=self.recompute and self.training)
        return self.norm(hidden)

    @staticmethod
    def generator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        initialise(dense, output_sigma(config))
        return head(dense, make_norm(config))

    discriminator_head = generator_head


class ModernEmbeddings(nn.Module):
    """Word embeddings, normed: all that generator and discriminator share."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = make_norm(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.word(ids))


class ModernLayer(nn.Module):
    """Attention, then a gated feed-forward; each sees a normed copy and adds to the stream."""

    def __init__(self, config: NetworkConfig, *, is_first: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads, self.attention_dropout = config.num_heads, config.attention_dropout
        self.attention_norm = nn.Identity() if is_first else make_norm(config)  # the embeddings are normed already
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.attention_out = nn.Linear(size, size, bias=False)
        self.ffn_norm = make_norm(config)
        self.ffn_in = nn.Linear(size, 2 * config.ffn_size, bias=False)
        self.ffn_out = nn.Linear(config.ffn_size, size, bias=False)
        self.out_dropout = nn.Dropout(config.attention_dropout)  # ModernBERT's attention_dropout is both of these
        self.dropout = nn.Dropout(config.dropout)
        initialise(self)
        initialise(self.attention_out, output_sigma(config))
        initialise(self.ffn_out, output_sigma(config))

    def forward(self, hidden: Tensor, attended: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """(B, T, H), (B, T) and the rotations: (B, T, H)."""
        query, key, value = split_heads(self.qkv(self.attention_norm(hidden)), self.num_heads)
        query, key = rotate(query, turn), rotate(key, turn)
        mixed = attend(query, key, value, attended, self.attention_dropout if self.training else 0.0)
        hidden = hidden + self.out_dropout(self.attention_out(mixed))
        value_in, gate = self.ffn_in(self.ffn_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.ffn_out(self.dropout(F.gelu(value_in) * gate))


def rotations(num_tokens: int, head_size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, each (T, D). Computed, not stored: always float32, on any device."""
    exponents = torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    angles = torch.arange(num_tokens, device=device, dtype=torch.float32)[:, None] * (1.0 / base**exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + D/2) of the heads (B, N, T, D) by its position's angle."""
    cosine, sine = turn
    first, second = heads.float().chunk(2, dim=-1)
    turned = heads.float() * cosine + torch.cat([-second, first], dim=-1) * sine
    return turned.to(heads.dtype)


def make_norm(config: NetworkConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=EPSILON, bias=False)


def output_sigma(config: NetworkConfig) -> float:
    """What adds to the residual stream starts small, the deeper the smaller: transformers' ModernBERT does the same."""
    return SIGMA / sqrt(2 * config.num_layers)

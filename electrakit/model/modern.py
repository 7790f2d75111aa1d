"""The `modern` body: transformers' ModernBERT (pre-norm, RoPE, gated GELU, no biases or segments) with global attention only."""

from math import sqrt

from torch import Tensor, nn

from electrakit.config.network import NetworkConfig
from electrakit.model.layouts import Tokens
from electrakit.model.parts import INITIALIZER_RANGE, Rope, initialise, prediction_head, run_layer

LAYER_NORM_EPS = 1e-5


class ModernBody(nn.Module):
    """Embeddings, layers, a last norm. `config.dropout` is after the embeddings and inside the feed-forward."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False  # gradient checkpointing of the layers
        self.embeddings = ModernEmbeddings(config)
        self.dropout = config.dropout
        self.layers = nn.ModuleList(ModernLayer(config, is_first=number == 0) for number in range(config.num_layers))
        self.norm = make_norm(config)
        initialise(self.embeddings)

    def forward(self, tokens: Tokens) -> Tensor:
        rope = tokens.rope(self.config.hidden_size // self.config.num_heads, self.config.rotary_base)
        hidden = tokens.dropout(self.embeddings(tokens.ids), self.dropout if self.training else 0.0)
        for layer in self.layers:
            hidden = run_layer(layer, hidden, tokens, rope, recompute=self.recompute and self.training)
        return self.norm(hidden)

    @staticmethod
    def generator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        initialise(dense, output_std(config))
        return prediction_head(dense, make_norm(config))

    discriminator_head = generator_head


class ModernEmbeddings(nn.Module):
    """Word embeddings and their norm: what generator and discriminator share."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = make_norm(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.word(ids))


class ModernLayer(nn.Module):
    """Attention, then a gated feed-forward, each with a norm before it and a residual connection around it."""

    def __init__(self, config: NetworkConfig, *, is_first: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.attention_norm = nn.Identity() if is_first else make_norm(config)  # the embeddings are normed already
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.attention_out = nn.Linear(size, size, bias=False)
        self.ffn_norm = make_norm(config)
        self.ffn_in = nn.Linear(size, 2 * config.ffn_size, bias=False)
        self.ffn_out = nn.Linear(config.ffn_size, size, bias=False)
        initialise(self)
        initialise(self.attention_out, output_std(config))
        initialise(self.ffn_out, output_std(config))

    def forward(self, hidden: Tensor, tokens: Tokens, rope: Rope) -> Tensor:
        rate, attention_rate = (self.dropout, self.attention_dropout) if self.training else (0.0, 0.0)
        mixed = tokens.attend(self.attention_norm(hidden), self.qkv, self.num_heads, attention_rate, rope)
        # ModernBERT uses attention_dropout here too.
        hidden, normed = tokens.add_norm(
            hidden, mixed, self.attention_out, self.ffn_norm, attention_rate, needs_sum=True
        )
        return hidden + self.ffn_out(tokens.gated_gelu(normed, self.ffn_in, rate))


def make_norm(config: NetworkConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPS, bias=False)


def output_std(config: NetworkConfig) -> float:
    """What is added to the residual stream starts smaller in deeper networks, as in transformers' ModernBERT."""
    return INITIALIZER_RANGE / sqrt(2 * config.num_layers)

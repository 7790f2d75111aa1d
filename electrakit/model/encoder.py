"""Ids in, logits out: the generator, the discriminator, and ELECTRA's classic body. One tensor of ids is all they take.

Shapes: B rows, T tokens, K chosen positions, V vocabulary, E embedding, H hidden.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.errors import UserError
from electrakit.model import kernels
from electrakit.model.layers import head, initialise, run
from electrakit.model.modern import ModernBody
from electrakit.model.tokens import Grid, Line, Tokens
from electrakit.network_config import NetworkConfig

EPSILON = 1e-12


class Network(nn.Module):
    """A body, `classic` or `modern`, and what both heads need of it. `body.embeddings` is the part that `tie` shares."""

    wants_kernels = False
    """Whether it computes with the kernels of `electrakit.model.kernels`, where they can: see `use_kernels`."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.body = BODIES[config.body](config)

    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden states of ids (B, T): (B, T, H)."""
        tokens, hidden = self.encode(ids)
        return tokens.as_grid(hidden)

    def encode(self, ids: Tensor) -> tuple[Tokens, Tensor]:
        """The tokens of ids (B, T), and their last hidden states."""
        if ids.size(1) > self.config.max_length:
            raise UserError(
                f"a row of {ids.size(1)} tokens is longer than max_length={self.config.max_length}; "
                "cut the rows or build the network with a larger max_length"
            )
        kind = Line if self.can_use_kernels(ids) else Grid
        tokens = kind.of(ids, self.config.pad_token_id, self.config.sep_token_id)
        return tokens, self.body(tokens)

    def can_use_kernels(self, ids: Tensor) -> bool:
        """Here and now: they are of the CPU, for float32 weights and products in float32 or bf16, and no tracer sees into them."""
        if (
            not self.wants_kernels
            or ids.device.type != "cpu"
            or torch.compiler.is_compiling()
            or torch.jit.is_tracing()
        ):
            return False
        has_types = not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") == torch.bfloat16
        return has_types and self.body.embeddings.word.weight.dtype == torch.float32 and kernels.load() is not None


class Generator(Network):
    """A masked language model. Its output table is the word-embedding table, whoever owns that."""

    gathers_positions = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.head = self.body.generator_head(config)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits at the positions (B, K): (B, K, V). Without positions at every token: (B, T, V)."""
        tokens, hidden = self.encode(ids)
        return self.score_words(tokens.as_grid(hidden) if positions is None else tokens.at(hidden, positions))

    def score_words(self, hidden: Tensor) -> Tensor:
        """The head: (..., H) -> (..., V)."""
        # the table is looked up at every call: after tie() it is the discriminator's
        return F.linear(self.head(hidden), self.body.embeddings.word.weight, self.output_bias)


class Discriminator(Network):
    """Says of each token how likely it was replaced."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.head = self.body.discriminator_head(config)
        self.score = nn.Linear(config.hidden_size, 1)
        initialise(self.score)
        nn.init.xavier_uniform_(self.score.weight)  # glorot: the official code names no initializer here

    def forward(self, ids: Tensor) -> Tensor:
        """One logit for each token, positive for "replaced": (B, T)."""
        tokens, hidden = self.encode(ids)
        return tokens.as_grid(self.score(self.head(hidden)).squeeze(-1))


class ClassicBody(nn.Module):
    """BERT as in ELECTRA: post-norm, learned positions, two segments, embeddings projected if their size differs."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.recompute = False  # gradient checkpointing of the layers
        self.embeddings = ClassicEmbeddings(config)
        self.dropout = config.dropout
        needs_projection = config.embedding_size != config.hidden_size
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if needs_projection else nn.Identity()
        self.layers = nn.ModuleList(ClassicLayer(config) for _ in range(config.num_layers))
        initialise(self)
        if isinstance(self.projection, nn.Linear):
            nn.init.xavier_uniform_(self.projection.weight)  # glorot: the official code names no initializer here

    def forward(self, tokens: Tokens) -> Tensor:
        hidden = self.projection(tokens.dropout(self.embeddings(tokens), self.dropout if self.training else 0.0))
        for layer in self.layers:
            hidden = run(layer, hidden, tokens, recompute=self.recompute and self.training)
        return hidden

    @staticmethod
    def generator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.embedding_size)
        initialise(dense)
        return head(dense, nn.LayerNorm(config.embedding_size, eps=EPSILON))

    @staticmethod
    def discriminator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(dense)
        return head(dense, nn.Identity())


class ClassicEmbeddings(nn.Module):
    """Word, position and segment, normed: all that generator and discriminator share, so no dropout and no projection."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position = nn.Embedding(config.max_length, config.embedding_size)
        self.segment = nn.Embedding(2, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=EPSILON)

    def forward(self, tokens: Tokens) -> Tensor:
        """A batch of E."""
        return self.norm(self.word(tokens.ids) + self.segment(tokens.segments) + tokens.look_up(self.position))


class ClassicLayer(nn.Module):
    """Attention, then feed-forward; each is added to what came in, and the sum is normed."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_out = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=EPSILON)
        self.ffn_in = nn.Linear(size, config.ffn_size)
        self.ffn_out = nn.Linear(config.ffn_size, size)
        self.ffn_norm = nn.LayerNorm(size, eps=EPSILON)

    def forward(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """A batch of H and its tokens: a batch of H."""
        rate, attention_rate = (self.dropout, self.attention_dropout) if self.training else (0.0, 0.0)
        mixed = tokens.attend(hidden, self.qkv, self.num_heads, attention_rate)
        hidden = tokens.add_norm(hidden, mixed, self.attention_out, self.attention_norm, rate)
        return tokens.add_norm(hidden, tokens.gelu(hidden, self.ffn_in), self.ffn_out, self.ffn_norm, rate)


BODIES: dict[str, type[ClassicBody] | type[ModernBody]] = {"classic": ClassicBody, "modern": ModernBody}


def use_kernels(module: nn.Module, is_wanted: bool = True) -> bool:
    """Let our own networks inside a module compute with kernels, or no longer; whether there are any (`kernels.problem` says why not)."""
    for network in module.modules():
        if isinstance(network, Network):
            network.wants_kernels = is_wanted
    return is_wanted and kernels.load() is not None

"""Ids in, logits out: the generator, the discriminator, and ELECTRA's classic body. One tensor of ids is all they take.

Shapes: B rows, T tokens, K chosen positions, V vocabulary, E embedding, H hidden.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.errors import UserError
from electrakit.model.layers import attend, head, initialise, run, split_heads
from electrakit.model.modern import ModernBody
from electrakit.network_config import NetworkConfig

EPSILON = 1e-12


class Network(nn.Module):
    """A body, `classic` or `modern`, and what both heads need of it. `body.embeddings` is the part that `tie` shares."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.body = BODIES[config.body](config)

    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden states of ids (B, T): (B, T, H)."""
        if ids.size(1) > self.config.max_length:
            raise UserError(
                f"a row of {ids.size(1)} tokens is longer than max_length={self.config.max_length}; "
                "cut the rows or build the network with a larger max_length"
            )
        return self.body(ids)


class Generator(Network):
    """A masked language model. Its output table is the word-embedding table, whoever owns that."""

    gathers_positions = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.head = self.body.generator_head(config)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits at the positions (B, K): (B, K, V). Without positions at every token: (B, T, V)."""
        hidden = self.hidden(ids)
        if positions is not None:
            hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.size(-1)))  # (B, K, H)
        return self.score_words(hidden)

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
        return self.score(self.head(self.hidden(ids))).squeeze(-1)


class ClassicBody(nn.Module):
    """BERT as in ELECTRA: post-norm, learned positions, two segments, embeddings projected if their size differs."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.pad, self.sep = config.pad_token_id, config.sep_token_id
        self.recompute = False  # gradient checkpointing of the layers
        self.embeddings = ClassicEmbeddings(config)
        self.dropout = nn.Dropout(config.dropout)
        needs_projection = config.embedding_size != config.hidden_size
        self.projection = nn.Linear(config.embedding_size, config.hidden_size) if needs_projection else nn.Identity()
        self.layers = nn.ModuleList(ClassicLayer(config) for _ in range(config.num_layers))
        initialise(self)
        if isinstance(self.projection, nn.Linear):
            nn.init.xavier_uniform_(self.projection.weight)  # glorot: the official code names no initializer here

    def forward(self, ids: Tensor) -> Tensor:
        attended = ids != self.pad
        hidden = self.projection(self.dropout(self.embeddings(ids, segments(ids, self.pad, self.sep))))
        for layer in self.layers:
            hidden = run(layer, hidden, attended, recompute=self.recompute and self.training)
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

    def forward(self, ids: Tensor, segment: Tensor) -> Tensor:
        """Both (B, T): (B, T, E)."""
        return self.norm(self.word(ids) + self.segment(segment) + self.position.weight[: ids.size(1)])


class ClassicLayer(nn.Module):
    """Attention, then feed-forward; each is added to what came in, and the sum is normed."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads, self.attention_dropout = config.num_heads, config.attention_dropout
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_out = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=EPSILON)
        self.ffn_in = nn.Linear(size, config.ffn_size)
        self.ffn_out = nn.Linear(config.ffn_size, size)
        self.ffn_norm = nn.LayerNorm(size, eps=EPSILON)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """(B, T, H) and (B, T): (B, T, H)."""
        query, key, value = split_heads(self.qkv(hidden), self.num_heads)
        mixed = attend(query, key, value, attended, self.attention_dropout if self.training else 0.0)
        hidden = self.attention_norm(hidden + self.dropout(self.attention_out(mixed)))
        return self.ffn_norm(hidden + self.dropout(self.ffn_out(F.gelu(self.ffn_in(hidden)))))


def segments(ids: Tensor, pad: int, sep: int | None) -> Tensor:
    """0 up to and with the first [SEP], 1 behind it, 0 for padding: (B, T)."""
    if sep is None:
        return torch.zeros_like(ids)
    is_sep = (ids == sep).long()
    num_before = is_sep.cumsum(-1) - is_sep
    return ((num_before > 0) & (ids != pad)).long()


BODIES: dict[str, type[ClassicBody] | type[ModernBody]] = {"classic": ClassicBody, "modern": ModernBody}

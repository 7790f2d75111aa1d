"""The `deberta` body: DeBERTa-v2 and -v3, whose attention knows relative positions only. Its weights fit transformers' DebertaV2Model.

The score of a query for a key is the sum of three products: of their contents, of the query's content with the distance, and of the key's
content with the distance. Near distances have a row each in one table for all layers, far ones share rows in logarithmic buckets.
"""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.config.network import NetworkConfig
from electrakit.model.layouts import Distances, Tokens
from electrakit.model.parts import initialise, prediction_head, run_layer

LAYER_NORM_EPS = 1e-7


class DebertaBody(nn.Module):
    """Post-norm layers without positions at the input; the layers share a table of relative distances.

    With `enhanced_mask_decoder`, for a network that predicts words: the last layer runs twice, as in Microsoft's code. Its first queries
    are the states before it plus a learned position, its second ones the result; keys and values are the states before it both times.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.recompute = False  # gradient checkpointing of the layers
        self.embeddings = DebertaEmbeddings(config)
        self.dropout = config.dropout
        self.distance = nn.Embedding(2 * config.position_buckets, config.hidden_size)
        self.distance_norm = make_norm(config)
        self.convolution = None if config.convolution is None else DebertaConvolution(config)
        self.layers = nn.ModuleList(DebertaLayer(config) for _ in range(config.num_layers))
        has_decoder = config.enhanced_mask_decoder
        self.position = nn.Embedding(config.max_length, config.hidden_size) if has_decoder else None
        self.rows = bucket_rows(config.position_buckets, config.max_length)
        self.register_buffer("row_of_distance", torch.tensor(self.rows), persistent=False)
        initialise(self)

    def forward(self, tokens: Tokens) -> Tensor:
        embedded = tokens.dropout(self.embeddings(tokens.ids), self.dropout if self.training else 0.0)
        distances = self.distances(tokens.attended.size(1))
        recompute = self.recompute and self.training
        layers = list(self.layers)
        last = layers.pop() if self.position is not None else None
        hidden = embedded
        for number, layer in enumerate(layers):
            hidden = run_layer(layer, hidden, tokens, distances, recompute=recompute)
            if number == 0 and self.convolution is not None:
                hidden = self.convolution(embedded, hidden, tokens)
        if last is None or self.position is None:
            return hidden
        query = hidden + tokens.embed_positions(self.position)
        for _ in range(2):
            query = run_layer(last, hidden, tokens, distances, query, recompute=recompute)
        return query

    def distances(self, num_tokens: int) -> Distances:
        """The part of the table that rows of this length need, normed, and the row in it of each distance from -(T - 1) to T - 1."""
        middle = len(self.rows) // 2
        low, high = self.rows[middle - num_tokens + 1], self.rows[middle + num_tokens - 1]
        row_of_distance = self.row_of_distance[middle - num_tokens + 1 : middle + num_tokens] - low  # type: ignore[index]
        return Distances(self.distance_norm(self.distance.weight[low : high + 1]), row_of_distance)

    @staticmethod
    def generator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(dense)
        return prediction_head(dense, make_norm(config))

    @staticmethod
    def discriminator_head(config: NetworkConfig) -> nn.Module:
        """A linear layer reads the states: transformers' token classifier has no more."""
        return nn.Dropout(config.dropout)


class DebertaEmbeddings(nn.Module):
    """Word embeddings and their norm."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = make_norm(config)

    def forward(self, ids: Tensor) -> Tensor:
        return self.norm(self.word(ids))


class DebertaLayer(nn.Module):
    """Attention, then feed-forward; after each a residual connection and a norm. Distances have dropout of their own in each layer."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_out = nn.Linear(size, size)
        self.attention_norm = make_norm(config)
        self.ffn_in = nn.Linear(size, config.ffn_size)
        self.ffn_out = nn.Linear(config.ffn_size, size)
        self.ffn_norm = make_norm(config)

    def forward(self, hidden: Tensor, tokens: Tokens, distances: Distances, query: Tensor | None = None) -> Tensor:
        """`query`: states that ask instead of the hidden ones, and that the result is added to."""
        rate, attention_rate = (self.dropout, self.attention_dropout) if self.training else (0.0, 0.0)
        # Queries and keys of distances come from the weights of those of content.
        projected = F.linear(tokens.dropout(distances.table, rate), *first_two_thirds(self.qkv))
        distances = Distances(projected, distances.row_of_distance)
        query = hidden if query is None else query
        mixed = tokens.attend_with_distances(query, hidden, self.qkv, self.num_heads, attention_rate, distances)
        _, hidden = tokens.add_norm(query, mixed, self.attention_out, self.attention_norm, rate)
        inner = tokens.gelu(hidden, self.ffn_in)
        return tokens.add_norm(hidden, inner, self.ffn_out, self.ffn_norm, rate)[1]


class DebertaConvolution(nn.Module):
    """Over the embeddings, added to the first layer's output: word order from the start (deberta-v2-xlarge has it)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size, width = config.hidden_size, config.convolution
        assert width is not None
        self.dropout = config.dropout
        self.mix = nn.Conv1d(size, size, width, padding=width // 2)
        self.norm = make_norm(config)

    def forward(self, embedded: Tensor, hidden: Tensor, tokens: Tokens) -> Tensor:
        padded = tokens.to_padded(embedded).masked_fill(~tokens.attended[..., None], 0)
        mixed = tokens.from_padded(self.mix(padded.transpose(1, 2)).transpose(1, 2))
        mixed = F.gelu(tokens.dropout(mixed, self.dropout if self.training else 0.0))
        return self.norm(hidden + mixed)


def make_norm(config: NetworkConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=LAYER_NORM_EPS)


def first_two_thirds(linear: nn.Linear) -> tuple[Tensor, Tensor]:
    size = linear.out_features // 3
    return linear.weight[: 2 * size], linear.bias[: 2 * size]


@functools.cache
def bucket_rows(num_buckets: int, max_length: int) -> tuple[int, ...]:
    """The row of each distance from -(max_length - 1) to max_length - 1 in a table of 2 * num_buckets rows.

    Half of the buckets are of one distance each. In float32 and in transformers' order: a bucket ends where the logarithm rounds.
    """
    distances = torch.arange(1 - max_length, max_length, device="cpu")
    middle, sizes = num_buckets // 2, distances.abs()
    is_near = sizes <= middle
    largest = torch.tensor((max_length - 1) / middle, device="cpu").log()
    far = ((sizes.clamp(min=middle) / middle).log() / largest * (middle - 1)).ceil() + middle
    buckets = torch.where(is_near, distances, (far * distances.sign()).nan_to_num().long())
    return tuple((buckets + num_buckets).clamp(0, 2 * num_buckets - 1).tolist())

"""The `classic` body: BERT as ELECTRA uses it. Its weights fit transformers' ElectraModel."""

from torch import Tensor, nn

from electrakit.config.network import NetworkConfig
from electrakit.model.layouts import Tokens
from electrakit.model.parts import initialise, prediction_head, run_layer

LAYER_NORM_EPS = 1e-12


class ClassicBody(nn.Module):
    """Post-norm layers, learned positions, two segments; embeddings are projected if their size is not the hidden size."""

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
            # The official code names no initialiser here, so TensorFlow's default applies.
            nn.init.xavier_uniform_(self.projection.weight)

    def forward(self, tokens: Tokens) -> Tensor:
        hidden = self.projection(tokens.dropout(self.embeddings(tokens), self.dropout if self.training else 0.0))
        for layer in self.layers:
            hidden = run_layer(layer, hidden, tokens, recompute=self.recompute and self.training)
        return hidden

    @staticmethod
    def generator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.embedding_size)
        initialise(dense)
        return prediction_head(dense, nn.LayerNorm(config.embedding_size, eps=LAYER_NORM_EPS))

    @staticmethod
    def discriminator_head(config: NetworkConfig) -> nn.Sequential:
        dense = nn.Linear(config.hidden_size, config.hidden_size)
        initialise(dense)
        return prediction_head(dense, nn.Identity())


class ClassicEmbeddings(nn.Module):
    """Word, position and segment embeddings and their norm. The networks share all of it, so dropout and projection are outside."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.embedding_size)
        self.position = nn.Embedding(config.max_length, config.embedding_size)
        self.segment = nn.Embedding(2, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=LAYER_NORM_EPS)

    def forward(self, tokens: Tokens) -> Tensor:
        embedded = self.word(tokens.ids) + self.segment(tokens.segments) + tokens.embed_positions(self.position)
        return self.norm(embedded)


class ClassicLayer(nn.Module):
    """Attention, then feed-forward; after each a residual connection and a norm."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.dropout, self.attention_dropout = config.dropout, config.attention_dropout
        self.qkv = nn.Linear(size, 3 * size)
        self.attention_out = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPS)
        self.ffn_in = nn.Linear(size, config.ffn_size)
        self.ffn_out = nn.Linear(config.ffn_size, size)
        self.ffn_norm = nn.LayerNorm(size, eps=LAYER_NORM_EPS)

    def forward(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        rate, attention_rate = (self.dropout, self.attention_dropout) if self.training else (0.0, 0.0)
        mixed = tokens.attend(hidden, self.qkv, self.num_heads, attention_rate)
        _, hidden = tokens.add_norm(hidden, mixed, self.attention_out, self.attention_norm, rate)
        inner = tokens.gelu(hidden, self.ffn_in)
        return tokens.add_norm(hidden, inner, self.ffn_out, self.ffn_norm, rate)[1]

"""The size of one network: a frozen dataclass that every model of ours is built from."""

from dataclasses import dataclass
from typing import Literal

from electrakit.errors import UserError

Body = Literal["classic", "modern", "bert", "albert"]


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """One encoder: its kind and its sizes."""

    # The defaults are ELECTRA-small's discriminator.
    body: Body = "classic"
    """`classic` is transformers' ELECTRA (post-norm, learned positions); `modern` is its ModernBERT (pre-norm, rotary, gated).
    Both are our own fast code; `bert` and `albert` (one layer's weights used by all layers) are transformers' own classes."""
    vocab_size: int = 30_522
    """Number of tokens that the tokenizer has."""
    num_layers: int = 12
    """Layers, one behind the other."""
    hidden_size: int = 256
    """Numbers that a token is between two layers."""
    ffn_size: int = 1024
    """Width of the feed-forward part of a layer."""
    num_heads: int = 4
    """Attention heads of a layer."""
    embedding_size: int = 128
    """Size of the token embeddings; projected to hidden_size when they differ (bodies classic and albert only)."""
    max_length: int = 512
    """Tokens of the longest row."""
    dropout: float = 0.1
    """After embeddings, attention and feed-forward."""
    attention_dropout: float = 0.1
    """Inside the attention, on its weights."""
    pad_token_id: int = 0
    """Padding: not attended to, not scored. A run takes it from the tokenizer of its shards."""
    sep_token_id: int | None = None
    """Where segment B begins: behind the first of these. None: one segment. A run takes it from the tokenizer of its shards."""
    rotary_base: float = 10_000.0
    """Longest wavelength of the rotary positions, over 2π (modern body only). 10,000 suits rows up to about 1,000 tokens."""

    def __post_init__(self) -> None:
        sizes = "vocab_size num_layers hidden_size ffn_size num_heads embedding_size max_length"
        for name in sizes.split():
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise UserError(f"hidden_size {self.hidden_size} does not divide by num_heads {self.num_heads}")
        for name in ("pad_token_id", "sep_token_id"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise UserError(f"{name} {token} is not in the vocabulary of {self.vocab_size}")
        if self.pad_token_id == self.sep_token_id:
            raise UserError(f"pad_token_id and sep_token_id are both {self.pad_token_id}: they must differ")
        if self.body in ("modern", "bert") and self.embedding_size != self.hidden_size:
            raise UserError(
                f"body={self.body!r} has no embedding projection: make embedding_size {self.embedding_size} equal to "
                f"hidden_size {self.hidden_size}, or use body='classic'"
            )
        if self.body == "modern" and (self.hidden_size // self.num_heads) % 2:
            raise UserError(
                f"body='modern' turns pairs of numbers: hidden_size {self.hidden_size} / num_heads {self.num_heads} must be even"
            )

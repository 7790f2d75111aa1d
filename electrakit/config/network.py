"""The settings of one network: its architecture and sizes."""

from dataclasses import dataclass
from typing import Literal

from electrakit.common.errors import UserError
from electrakit.config.base import Settings, check_at_least, check_below_one

Body = Literal["classic", "modern", "deberta", "bert", "albert"]


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Settings):
    """One encoder: its architecture and its sizes."""

    # The defaults are ELECTRA-small's discriminator.
    body: Body = "classic"
    """`classic`: ELECTRA (post-norm, learned positions); `modern`: ModernBERT (pre-norm, RoPE, gated); `deberta`: DeBERTa-v3 (post-norm,
    relative positions); `bert`; `albert`: shared layers."""
    vocab_size: int = 30_522
    """Number of tokens in the vocabulary."""
    num_layers: int = 12
    """Number of Transformer layers."""
    hidden_size: int = 256
    """Width of the hidden states."""
    ffn_size: int = 1024
    """Width of the feed-forward layers."""
    num_heads: int = 4
    """Number of attention heads in each layer."""
    embedding_size: int = 128
    """Width of the token embeddings. If it is not hidden_size, they are projected (bodies classic and albert only)."""
    max_length: int = 512
    """Longest row in tokens."""
    dropout: float = 0.1
    """Dropout after embeddings, attention and feed-forward layers."""
    attention_dropout: float = 0.1
    """Dropout of the attention weights."""
    pad_token_id: int = 0
    """Id of [PAD], which is neither attended to nor scored. A run takes it from the tokenizer of its shards."""
    sep_token_id: int | None = None
    """Id of [SEP]: segment B begins after the first one. None: one segment. A run takes it from the tokenizer of its shards."""
    rotary_base: float = 10_000.0
    """Base of the RoPE frequencies (modern body only). 10,000 suits rows of up to about 1,000 tokens."""
    position_buckets: int = 256
    """Number of relative distances to each side that are told apart (deberta body only): half are single ones, far ones are grouped."""
    convolution: int | None = None
    """Width of a convolution beside the first layer (deberta body only): 3 in deberta-v2-xlarge. None: there is none."""
    enhanced_mask_decoder: bool = False
    """The last layer runs twice, the first time with absolute positions (deberta body, generators). Transformers cannot hold it."""

    def check(self) -> None:
        sizes = "vocab_size num_layers hidden_size ffn_size num_heads embedding_size max_length"
        check_at_least(1, self.values(*sizes.split()))
        check_at_least(2, self.values("position_buckets"))
        check_below_one(self.values("dropout", "attention_dropout"))
        if self.hidden_size % self.num_heads:
            raise UserError(f"hidden_size {self.hidden_size} does not divide by num_heads {self.num_heads}")
        for name, token in self.values("pad_token_id", "sep_token_id").items():
            if not 0 <= token < self.vocab_size:
                raise UserError(f"{name} {token} is not in the vocabulary of {self.vocab_size}")
        if self.pad_token_id == self.sep_token_id:
            raise UserError(f"pad_token_id and sep_token_id are both {self.pad_token_id}: they must differ")
        if self.body in ("modern", "deberta", "bert") and self.embedding_size != self.hidden_size:
            raise UserError(
                f"body={self.body!r} has no embedding projection: make embedding_size {self.embedding_size} equal to "
                f"hidden_size {self.hidden_size}, or use body='classic'"
            )
        if self.body == "modern" and (self.hidden_size // self.num_heads) % 2:
            raise UserError(
                f"body='modern' has RoPE, which rotates pairs: hidden_size {self.hidden_size} / num_heads {self.num_heads} must be even"
            )
        if self.body != "deberta" and (self.convolution is not None or self.enhanced_mask_decoder):
            setting = "enhanced_mask_decoder" if self.convolution is None else "convolution"
            raise UserError(f"{setting} goes with body='deberta', body is {self.body!r}: leave it out")
        if self.convolution is not None and (self.convolution < 1 or self.convolution % 2 == 0):
            raise UserError(
                f"convolution {self.convolution} must be odd, so that it has as many tokens to both sides; 3 is usual"
            )
        if self.enhanced_mask_decoder and self.num_layers < 2:
            raise UserError("enhanced_mask_decoder reads the layer before the last: num_layers must be at least 2")

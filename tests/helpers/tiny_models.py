"""Models of all kinds that tests build in no time."""

import warnings
from typing import Any

import torch
import transformers
from reformer_pytorch import ReformerLM
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForTokenClassification
from x_transformers import Encoder, TransformerWrapper

from electrakit.config.network import NetworkConfig

torch.set_num_threads(1)

VOCAB, SEP, PAD = 100, 3, 0
POSITIONS = torch.tensor([[1, 4, 14], [9, 2, 2]])
FAMILIES = ["electra", "bert", "albert", "distilbert", "roberta", "deberta-v2", "modernbert"]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}
SIZES_OF: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "convbert": {"embedding_size": 16},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 66},
    "electra": {"embedding_size": 16},
    "eurobert": {"num_key_value_heads": 2},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roformer": {"embedding_size": 16},
}


def tiny_config(family: str, **changes: Any) -> Any:
    sizes = SIZES_OF[family] if family == "distilbert" else {**SIZES, **SIZES_OF.get(family, {})}
    ids = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": SEP}
    return AutoConfig.for_model(family, **{"vocab_size": VOCAB, **ids, **sizes, **changes})


def tiny_generator(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForMaskedLM.from_config(tiny_config(family, **changes)).eval()


def tiny_discriminator(family: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    return AutoModelForTokenClassification.from_config(tiny_config(family, **changes)).eval()


def tiny_pretraining_electra(**changes: Any) -> Any:
    torch.manual_seed(1)
    return transformers.ElectraForPreTraining(tiny_config("electra", **changes)).eval()


def our_config(**changes: Any) -> NetworkConfig:
    sizes = {"num_layers": 2, "hidden_size": 32, "ffn_size": 64, "num_heads": 2, "embedding_size": 16, "max_length": 66}
    return NetworkConfig(**{"vocab_size": VOCAB, "sep_token_id": SEP, **sizes, **changes})


def padded_rows() -> Tensor:
    """[CLS] A [SEP] B [SEP], the second row padded: (2, 16)."""
    ids = torch.randint(5, VOCAB, (2, 16), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, 6], ids[0, 15], ids[1, 10], ids[1, 11:] = 1, SEP, SEP, SEP, PAD
    return ids


def reformer(dim: int, **changes: Any) -> ReformerLM:
    """The README's ReformerLM, scaled down; full attention, so that its random hashes do not blur a comparison."""
    torch.manual_seed(dim)
    sizes = {
        "num_tokens": VOCAB,
        "emb_dim": 16,
        "dim_head": 8,
        "heads": 2,
        "depth": 2,
        "max_seq_len": 16,
        "bucket_size": 4,
    }
    return ReformerLM(dim=dim, **{**sizes, **changes})


def x_transformer(**changes: Any) -> TransformerWrapper:
    torch.manual_seed(0)
    return TransformerWrapper(
        num_tokens=VOCAB, max_seq_len=16, attn_layers=Encoder(dim=32, depth=2, heads=2), **changes
    ).eval()


class Wordwise(nn.Module):
    """A plain module without a mask, for the shapes of outputs."""

    def __init__(self, *num_outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 8)
        self.unused = nn.Linear(8, 8)
        self.pair = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, num_outputs[0]) if num_outputs else nn.Flatten(1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.pair(self.words(ids))[0])


def quietly(adapt: Any, model: nn.Module, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is not told what is padding")
        return adapt(model, **options)

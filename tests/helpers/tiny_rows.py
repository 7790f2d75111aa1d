"""Rows of ids for tests of objectives, their special tokens, and the size of networks that read them."""

import torch

from electrakit.config.network import NetworkConfig

PAD, CLS, SEP, MASK, VOCAB = 0, 2, 3, 4, 60
TOKENS = {"mask_token_id": MASK, "pad_token_id": PAD, "sep_token_id": SEP, "mask_ignore_token_ids": [CLS, SEP]}
SIZE = NetworkConfig(
    num_layers=1,
    num_heads=2,
    hidden_size=32,
    ffn_size=64,
    embedding_size=16,
    vocab_size=VOCAB,
    max_length=64,
    pad_token_id=PAD,
    sep_token_id=SEP,
)


def rows(num_rows: int = 6, length: int = 40, seed: int = 0) -> torch.Tensor:
    ids = torch.randint(5, VOCAB, (num_rows, length), generator=torch.Generator().manual_seed(seed))
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    ids[1, 25:] = PAD
    return ids

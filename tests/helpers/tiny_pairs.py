"""Pairs with random weights and a real small WordPiece vocabulary, as transformers saves them."""

from pathlib import Path
from typing import Any

import torch
import transformers

from electrakit import load_tokenizer

torch.set_num_threads(1)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the a cafe owner plays play golf un and she opened window because it was warm chef ate meal cat sat on mat"
VOCABULARY = [*SPECIAL, *WORDS.split(), ",", ".", "!", "<", ">", "/", "script", "##happi", "##ed", "##s", "##ly"]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "sep_token_id": 3,
}


def write_tokenizer(folder: Path, vocabulary: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
    load_tokenizer(folder).save(folder)


def config_of(family: str, vocabulary: list[str], **changes: Any) -> Any:
    more = {"embedding_size": 16} if family in ("electra", "albert") else {}
    if family == "modernbert":
        more = {"cls_token_id": 2, "bos_token_id": None, "eos_token_id": None}
    if family == "deberta-v2":
        more = {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_buckets": 8,
            "share_att_key": True,
        }
    return transformers.AutoConfig.for_model(family, **{"vocab_size": len(vocabulary), **SIZES, **more, **changes})


def write(model: Any, folder: Path, vocabulary: list[str]) -> Path:
    with torch.no_grad():  # random weights of the usual size say almost the same about everything
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "embeddings" not in name:
                weight.mul_(6)
    model.save_pretrained(folder)
    write_tokenizer(folder, vocabulary)
    return folder


def write_discriminator(
    folder: Path, family: str = "electra", vocabulary: list[str] = VOCABULARY, seed: int = 1, **changes: Any
) -> Path:
    torch.manual_seed(seed)
    config = config_of(family, vocabulary, **{"num_labels": 2, **changes})
    if family == "electra":
        return write(transformers.ElectraForPreTraining(config), folder, vocabulary)
    return write(transformers.AutoModelForTokenClassification.from_config(config), folder, vocabulary)


def write_generator(
    folder: Path, family: str = "electra", vocabulary: list[str] = VOCABULARY, seed: int = 2, **changes: Any
) -> Path:
    torch.manual_seed(seed)
    config = config_of(family, vocabulary, **changes)
    return write(transformers.AutoModelForMaskedLM.from_config(config), folder, vocabulary)


def write_pair(folder: Path, family: str = "electra", vocabulary: list[str] = VOCABULARY, seed: int = 1) -> Path:
    """As an export: the discriminator on top, the generator inside."""
    write_discriminator(folder, family, vocabulary, seed)
    write_generator(folder / "generator", family, vocabulary, seed + 1)
    return folder

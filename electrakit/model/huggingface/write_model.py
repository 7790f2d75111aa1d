"""Writes a trained network as a transformers folder, reads it back, and compares the logits."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.safe_load import explain_load_errors, load_full_model, quiet_transformers, require_safe
from electrakit.model.counts import HeadKind
from electrakit.model.huggingface.adapt import as_discriminator, as_generator
from electrakit.model.huggingface.inputs import InputsFor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_LOGIT_DIFFERENCE = 1e-4  # relative to the largest logit: two implementations round differently
HAS_ALL_POSITIONS = ("albert", "bert", "deberta-v2", "electra", "modernbert")  # families that number positions from 0


@dataclass(frozen=True)
class TrainedNetwork:
    """One network of a checkpoint, as it was trained and for transformers."""

    name: str
    network: nn.Module
    """As it was trained: ids (B, T) to one logit per token, or ids and positions to word logits."""
    model: "PreTrainedModel"
    head: HeadKind | None
    """None: a body without a head."""
    is_custom: bool = False
    """Not built from the run's settings: `pretrain(config, objective=...)`."""

    def folder(self, out: Path) -> Path:
        return out if self.name == "discriminator" else out / self.name


def open_model(folder: Path) -> "PreTrainedModel":
    """Open a transformers folder as the class that it was saved from."""
    import transformers

    require_safe(str(folder))
    with quiet_transformers(), explain_load_errors(str(folder)):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return load_full_model(getattr(transformers, config.architectures[0]), folder)


def write_transformers_model(model: "PreTrainedModel", folder: Path, special_ids: dict[str, int]) -> dict[str, Any]:
    """Write weights and config; returns the settings that the model's tokenizer needs."""
    with quiet_transformers():
        model.save_pretrained(folder)
    settings: dict[str, Any] = {}
    if model.config.model_type in HAS_ALL_POSITIONS:
        settings["model_max_length"] = model.config.max_position_embeddings
    if not InputsFor.of(model, special_ids["pad"], special_ids["sep"]).has_segments:
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    return settings


@torch.no_grad()
def compare(trained: TrainedNetwork, folder: Path, ids: Tensor, special_ids: dict[str, int]) -> float:
    """Read the folder again; the largest difference to the trained network's logits. Too large a one is an error."""
    reloaded = open_model(folder)
    differences, sizes = [], []
    for rows in ids.split(2):  # in parts: word logits of a large vocabulary are large
        attended = rows != special_ids["pad"]
        ours, theirs = (
            outputs(network, trained.head, rows, special_ids)[attended] for network in (trained.network, reloaded)
        )
        differences.append((ours - theirs).abs().max())
        sizes.append(ours.abs().max())
    difference, largest = (torch.stack(each).max().item() for each in (differences, sizes))  # NaN stays NaN
    if not difference <= MAX_LOGIT_DIFFERENCE * max(1.0, largest):
        raise UserError(
            f"the {trained.name} as transformers reads it does not compute what the trained one computes: logits differ by "
            f"{difference:.2g}; nothing was written. Please report this, with config.json of the run"
        )
    require_same_tokens(folder, special_ids)
    return difference


def outputs(network: nn.Module, head: HeadKind | None, ids: Tensor, special_ids: dict[str, int]) -> Tensor:
    """Logits (B, T), word logits (B, T, V), or the hidden states of a body without a head (B, T, H)."""
    pad, sep = special_ids["pad"], special_ids["sep"]
    if head == "words":
        positions = torch.arange(ids.size(1)).expand(ids.shape)
        return as_generator(network, pad_token_id=pad, sep_token_id=sep)(ids, positions)
    if head == "replaced":
        return as_discriminator(network, pad_token_id=pad, sep_token_id=sep)(ids)
    return network(ids, **InputsFor.of(network, pad, sep)(ids))[0]


def require_same_tokens(folder: Path, special_ids: dict[str, int]) -> None:
    """The special tokens of the tokenizer that transformers reads must have the ids that the model was trained with."""
    import transformers

    with quiet_transformers(), explain_load_errors(str(folder)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    found = {role: getattr(tokenizer, f"{role}_token_id") for role in special_ids}
    if found != special_ids:
        raise UserError(
            f"transformers reads other special tokens from the tokenizer: {found}, trained with {special_ids}"
        )

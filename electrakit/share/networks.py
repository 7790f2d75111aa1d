"""A checkpoint in, its networks out: written as transformers reads them, read again from the disk, and compared."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from electrakit.data.tokenizer import TokenizerFiles
from electrakit.errors import UserError
from electrakit.loading import load_whole, quiet, readable, require_safe
from electrakit.model.adapt import as_discriminator, as_generator, unwrap
from electrakit.model.counts import Head, heads
from electrakit.model.encoder import Discriminator, Generator
from electrakit.model.inputs import InputsFor
from electrakit.model.tie import load_state_once
from electrakit.model.weights import TWO_LABELS, to_transformers
from electrakit.objective.build import build_objective
from electrakit.train.checkpoint import parts_of
from electrakit.train.run_folder import read_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_DIFFERENCE = 1e-4  # of logits, relative to the largest: the two ways to compute them round differently
HAS_ALL_POSITIONS = ("albert", "bert", "electra", "modernbert")  # families that number positions from 0


@dataclass(frozen=True)
class Part:
    """One network of a checkpoint."""

    name: str
    network: nn.Module
    """As it was trained: ids (B, T) to one logit per token, or ids and positions to words."""
    model: "PreTrainedModel"
    """The same for transformers."""
    head: Head | None
    """None: a body alone."""
    is_custom: bool = False
    """Not built from the run's settings: `pretrain(config, objective=...)`."""

    def folder(self, out: Path) -> Path:
        return out if self.name == "discriminator" else out / self.name


def load_parts(run: Path, place: Path) -> list[Part]:
    """The discriminator, and the generator if there is one."""
    stored = read_config(run)
    config = stored.settings
    # whole words are a matter of masking: nothing of it is in the weights
    plain = replace(config, objective=replace(config.objective, whole_words=False))
    with quiet(), torch.random.fork_rng(devices=[]):
        try:
            objective = build_objective(plain, stored.data["special_ids"])
            load_state_once(objective, load_file(place / "model.safetensors"))
        except UserError:  # networks that are not those of the settings: pretrain(config, objective=...)
            return [load_custom(place, name) for name in ("discriminator", "generator") if has_custom(place, name)]
        parts = []
        for name, attribute in parts_of(objective).items():
            network = getattr(objective, attribute).eval()
            own = isinstance(network, Generator | Discriminator)
            model: Any = to_transformers(network) if own else unwrap(network)
            if (
                heads(config)[name] == "replaced"
                and model.config.num_labels == 2
                and model.config.model_type != "electra"
            ):
                model.config.id2label, model.config.label2id = (
                    TWO_LABELS,
                    {each: key for key, each in TWO_LABELS.items()},
                )
            parts.append(Part(name, network, model.eval(), heads(config)[name]))
        return parts


def has_custom(place: Path, name: str) -> bool:
    if (place / name / "config.json").exists():
        return True
    if name == "discriminator":
        raise UserError(
            f"the discriminator of {place} is a module of your own, which transformers does not have; its weights are "
            f"`discriminator.*` in {place / 'model.safetensors'}: load them with safetensors.torch.load_file"
        )
    return False


def load_custom(place: Path, name: str) -> Part:
    """A transformers model of the user's own pair, as the checkpoint holds it."""
    model = open_model(place / name)
    kind = type(model).__name__
    is_known = kind.endswith(("ForPreTraining", "ForTokenClassification"))
    head: Head | None = "words" if kind.endswith("ForMaskedLM") else "replaced" if is_known else None
    return Part(name, model, model, head, is_custom=True)


def open_model(folder: Path) -> "PreTrainedModel":
    """As the class that its weights were saved from."""
    import transformers

    require_safe(str(folder))
    with quiet(), readable(str(folder)):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return load_whole(getattr(transformers, config.architectures[0]), folder)


def write_model(part: Part, folder: Path, tokenizer: TokenizerFiles) -> None:
    """Weights, config, and a tokenizer that gives the model what it takes."""
    with quiet():
        part.model.save_pretrained(folder)
    settings = dict(tokenizer.config)
    if part.model.config.model_type in HAS_ALL_POSITIONS:
        settings["model_max_length"] = part.model.config.max_position_embeddings
    if not InputsFor.of(part.model, tokenizer.special_ids["pad"], tokenizer.special_ids["sep"]).has_segments:
        settings["model_input_names"] = ["input_ids", "attention_mask"]
    replace(tokenizer, config=settings).save(folder)


@torch.no_grad()
def compare(part: Part, folder: Path, ids: Tensor, special: dict[str, int]) -> float:
    """Read the folder again; the largest difference to the trained network's logits. Too large a one is an error."""
    reloaded = open_model(folder)
    differences, sizes = [], []
    for rows in ids.split(2):  # not all at once: logits for every word of a large vocabulary are large
        is_real = rows != special["pad"]
        ours, theirs = (outputs(network, part.head, rows, special)[is_real] for network in (part.network, reloaded))
        differences.append((ours - theirs).abs().max())
        sizes.append(ours.abs().max())
    difference, largest = (torch.stack(each).max().item() for each in (differences, sizes))  # NaN stays NaN
    if not difference <= MAX_DIFFERENCE * max(1.0, largest):
        raise UserError(
            f"the {part.name} as transformers reads it says something else than the one that was trained: logits differ by "
            f"{difference:.2g}; nothing was written. Please report this, with config.json of the run"
        )
    require_same_tokens(folder, special)
    return difference


def outputs(network: nn.Module, head: Head | None, ids: Tensor, special: dict[str, int]) -> Tensor:
    """Logits (B, T), logits of words (B, T, V), or the states of a body without a head (B, T, H)."""
    settings: Any = {"pad_token_id": special["pad"], "sep_token_id": special["sep"]}
    if head == "words":
        positions = torch.arange(ids.size(1)).expand(ids.shape)
        return as_generator(network, **settings)(ids, positions)
    if head == "replaced":
        return as_discriminator(network, **settings)(ids)
    return network(ids, **InputsFor.of(network, special["pad"], special["sep"])(ids))[0]


def require_same_tokens(folder: Path, special: dict[str, int]) -> None:
    """As transformers reads the tokenizer, the special tokens have the numbers that the model was trained with."""
    import transformers

    with quiet(), readable(str(folder)):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    found = {role: getattr(tokenizer, f"{role}_token_id") for role in special}
    if found != special:
        raise UserError(f"transformers reads other special tokens from the tokenizer: {found}, trained with {special}")

"""A place in, its networks out: an exported folder, a run, a checkpoint, a transformers model, or a name on the hub."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from electrakit.common.errors import UserError, one_line
from electrakit.common.safe_load import load_full_model
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer
from electrakit.model.counts import HeadKind
from electrakit.model.huggingface.adapt import Adapter, as_discriminator, as_generator
from electrakit.model.huggingface.inputs import InputsFor
from electrakit.model.huggingface.names import ENERGY_MARK
from electrakit.runs import layout

MAX_TEXT_TOKENS = 512
"""Of a text, [CLS] and [SEP] included; longer ones are cut."""
HUB_FILES = ["*.json", "*.txt", "*.safetensors", "generator/*.json", "generator/*.txt", "generator/*.safetensors"]
HUB_NAME = r"[\w.-]+/[\w.-]+|[\w-][\w.-]*"
NAMES_OF_HEADS: dict[HeadKind | None, str] = {"replaced": "discriminator", "words": "masked LM", None: "encoder"}


@dataclass(frozen=True)
class OpenNetwork:
    """A network with its tokenizer, ready to be measured."""

    model: str
    """The name of the place that it was found in."""
    name: str
    """discriminator, generator, masked LM, or encoder: one without a head that we know."""
    head: HeadKind | None
    adapter: Adapter
    tokenizer: TokenizerFiles
    max_tokens: int
    """The longest row that it takes."""
    gives_energies: bool = False
    """A discriminator that Electric has trained: a token's logit is -log p(token | the others)."""

    @property
    def title(self) -> str:
        return f"{self.model} {self.name}"

    @property
    def device(self) -> torch.device:
        return next(self.adapter.parameters()).device

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, with [CLS] and [SEP]; what the network has no room for is cut off."""
        special, room = self.tokenizer.special_ids, min(self.max_tokens, MAX_TEXT_TOKENS) - 2
        encodings = self.tokenizer.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[special["cls"], *encoding.ids[:room], special["sep"]] for encoding in encodings]


def open_networks(place: str | os.PathLike[str]) -> list[OpenNetwork]:
    """Every network of a place: a discriminator and the generator beside it, or one alone."""
    place = os.fspath(place)
    return [open_network(place, folder) for folder in find_networks(place)]


def open_network(place: str, folder: Path) -> OpenNetwork:
    """One of the folders that `find_networks` finds."""
    head = head_of(folder)
    tokenizer = load_tokenizer(folder)
    adapter = load_network(folder, head, tokenizer)
    adapter.to("cuda" if torch.cuda.is_available() else "cpu")
    name = "generator" if folder.name == "generator" and head == "words" else NAMES_OF_HEADS[head]
    max_tokens = max_length_of(adapter, tokenizer)
    return OpenNetwork(name_of(place), name, head, adapter, tokenizer, max_tokens, gives_energies(folder))


def name_of(place: str) -> str:
    """The last part of the path; for a checkpoint, with the name of its run."""
    path = Path(place).resolve() if Path(place).exists() else Path(place)
    run = layout.run_of_checkpoint(path)
    return f"{run.name} {path.name}" if run else path.name


# Finding the networks


def find_networks(place: str) -> list[Path]:
    """The folders of a place's networks, the discriminator's first."""
    folder = Path(place).expanduser()
    if not folder.exists():
        folder = from_hub(place)
    elif not folder.is_dir():
        raise UserError(f"{place} is a file; name the folder of a model, of a run, or of one of its checkpoints")
    if (folder / layout.CHECKPOINTS).is_dir():
        checkpoint = layout.newest_checkpoint(folder)
        if checkpoint is None:
            raise UserError(f"the run {folder} has no checkpoint yet; wait for its first one")
        folder = checkpoint
    inside = [folder / name for name in layout.NETWORKS]
    found = [one for one in (folder, *inside) if "model_type" in read_config_json(one)]
    if not found:
        raise UserError(
            f"no model in {place}: it has neither a config.json of transformers, nor discriminator/ or generator/ with one; "
            "name an exported folder, a run, a checkpoint, or a transformers model"
        )
    return found


def from_hub(name: str) -> Path:
    """The files of a name on the hub, from the cache if they are there: weights as safetensors only, no code."""
    if not re.fullmatch(HUB_NAME, name):
        raise UserError(f"there is no folder {name!r}; name an exported folder, a run, a checkpoint, or a hub name")
    load_tokenizer(name)  # one line if there is no such name, or no connection
    from huggingface_hub import snapshot_download

    download = functools.partial(snapshot_download, name, allow_patterns=HUB_FILES)
    with contextlib.suppress(Exception):  # not in the cache
        folder = Path(download(local_files_only=True))
        if any(folder.glob("*.safetensors")):
            return folder
    try:
        return Path(download())
    except Exception as error:  # of the network or of the hub: they have no common class
        raise UserError(f"cannot load {name!r} from the hub: {one_line(error)}") from None


def read_config_json(folder: Path) -> dict[str, Any]:
    """The config.json of a folder; empty where there is none."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {one_line(error)}") from None
    return config if isinstance(config, dict) else {}


def class_of(folder: Path) -> str:
    """The name of the class that the weights were saved from."""
    names = read_config_json(folder).get("architectures") or ["model without a head"]
    return str(names[0])


def head_of(folder: Path) -> HeadKind | None:
    """The kind of head; None if it predicts neither which tokens were replaced nor which words are missing."""
    name = class_of(folder)
    if name == "ElectraForPreTraining" or name.endswith("ForTokenClassification"):
        return "replaced"
    return "words" if name.endswith(("ForMaskedLM", "ForPreTraining")) else None


def gives_energies(folder: Path) -> bool:
    """Whether a discriminator's logits are energies."""
    return head_of(folder) == "replaced" and ENERGY_MARK.items() <= read_config_json(folder).items()


# Loading them


def load_network(folder: Path, head: HeadKind | None, tokenizer: TokenizerFiles) -> Any:
    """A network that fits the tokenizer, with the interface of our own networks; without a head, its states only."""
    import transformers

    name = class_of(folder)
    if head == "words":
        kind: Any = transformers.AutoModelForMaskedLM
    elif head == "replaced" and name != "ElectraForPreTraining":
        kind = transformers.AutoModelForTokenClassification
    else:
        kind = getattr(transformers, name, transformers.AutoModel)
    model = load_full_model(kind, folder)
    if model.config.vocab_size < len(tokenizer.vocabulary):
        raise UserError(
            f"{folder} has {model.config.vocab_size:,} embeddings for {len(tokenizer.vocabulary):,} tokens of its tokenizer"
        )
    if head == "replaced" and getattr(model.config, "num_labels", 1) > 2:
        raise UserError(f"{folder} has {model.config.num_labels} labels; it takes one or two: original and replaced")
    special = tokenizer.special_ids
    if head is None:
        return Adapter(model.base_model, InputsFor.of(model.base_model, special["pad"], special["sep"]))
    adapt = as_generator if head == "words" else as_discriminator
    return adapt(model, pad_token_id=special["pad"], sep_token_id=special["sep"])


def max_length_of(adapter: Adapter, tokenizer: TokenizerFiles) -> int:
    """The longest input in tokens, [CLS] and [SEP] included."""
    config: Any = adapter.model.config
    num_positions = getattr(config, "max_position_embeddings", MAX_TEXT_TOKENS)
    counts_from_padding = any(name in config.model_type for name in ("roberta", "camembert", "mpnet"))
    num_positions -= config.pad_token_id + 1 if counts_from_padding else 0
    longest = tokenizer.config.get("model_max_length")
    return min(num_positions, longest) if isinstance(longest, int) else num_positions

"""Opens a pair of networks: an exported folder, a run, a checkpoint, one model alone, or a name on the hub."""

import contextlib
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

from torch import nn

from electrakit.common.errors import UserError, one_line
from electrakit.common.safe_load import load_full_model
from electrakit.data.tokenizer_files import TokenizerFiles, has_tokenizer_files, load_tokenizer
from electrakit.model.counts import HeadKind
from electrakit.model.huggingface.adapt import as_discriminator, as_generator
from electrakit.playground.pair import Pair
from electrakit.runs import layout

MAX_TOKENS = 512
"""Longer texts take too long for a page that answers while the user types."""
HUB_FILES = ["*.json", "*.txt", "*.safetensors", "generator/*.json", "generator/*.txt", "generator/*.safetensors"]
HUB_NAME = r"[\w.-]+/[\w.-]+|[\w-][\w.-]*"


def open_pair(place: str | os.PathLike[str], generator: str | os.PathLike[str] | None = None) -> Pair:
    """Open the networks of a place. generator: where to find one for a discriminator that has none beside it."""
    place = os.fspath(place)
    folders = find_folders(place)
    if generator is not None and "words" not in folders:
        others = find_folders(os.fspath(generator))
        if "words" not in others:
            raise UserError(f"--generator {generator} predicts no words; name a model with a head for masked words")
        folders["words"] = others["words"]
    # The discriminator's tokenizer, if it has one.
    tokenizer = load_tokenizer(folders.get("replaced") or folders["words"])
    for folder in folders.values():
        check_same_vocabulary(tokenizer, folder)
    networks = {head: load_network(folder, head, tokenizer) for head, folder in folders.items()}
    lengths = [tokenizer.config.get("model_max_length"), *map(max_length_of, networks.values())]
    max_tokens = min(MAX_TOKENS, *(length for length in lengths if isinstance(length, int)))
    return Pair(name_of(place), tokenizer, max_tokens, networks.get("words"), networks.get("replaced"))


def name_of(place: str) -> str:
    """The last part of the path; for a checkpoint, with the name of its run."""
    path = Path(place).resolve() if Path(place).exists() else Path(place)
    run = layout.run_of_checkpoint(path)
    return f"{run.name} {path.name}" if run else path.name


# --- finding the networks ---


def find_folders(place: str) -> dict[HeadKind, Path]:
    """The folders of the networks, by the kind of their head."""
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
    candidates = [one for one in (folder, *inside) if "model_type" in read_config_json(one)]
    if not candidates:
        raise UserError(
            f"no model in {place}: it has neither a config.json of transformers, nor discriminator/ or generator/ with one; "
            "name an exported folder, a run, a checkpoint, or a transformers model"
        )
    found: dict[HeadKind, Path] = {}
    for candidate in candidates:
        found.setdefault(head_of(candidate), candidate)
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


def head_of(folder: Path) -> HeadKind:
    """The kind of head, by the class that the weights were saved from."""
    names = read_config_json(folder).get("architectures") or ["model without a head"]
    name = str(names[0])
    if name == "ElectraForPreTraining" or name.endswith("ForTokenClassification"):
        return "replaced"
    if name.endswith(("ForMaskedLM", "ForPreTraining")):
        return "words"
    raise UserError(
        f"{folder} is a {name}: it predicts neither which tokens were replaced (ElectraForPreTraining, ...ForTokenClassification) "
        "nor which words are missing (...ForMaskedLM)"
    )


# --- loading them ---


def check_same_vocabulary(tokenizer: TokenizerFiles, folder: Path) -> None:
    """Both networks must have the same vocabulary."""
    if not has_tokenizer_files(folder):
        return
    theirs = load_tokenizer(folder).vocabulary
    if theirs != tokenizer.vocabulary:
        raise UserError(
            f"the generator {folder} has another vocabulary ({len(theirs):,} tokens) than the discriminator "
            f"({len(tokenizer.vocabulary):,}); name one that was trained with it"
        )


def load_network(folder: Path, head: HeadKind, tokenizer: TokenizerFiles) -> nn.Module:
    """A network that fits the tokenizer, with the interface of our own networks."""
    import transformers

    if head == "words":
        kind: Any = transformers.AutoModelForMaskedLM
    elif read_config_json(folder)["architectures"][0] == "ElectraForPreTraining":
        kind = transformers.ElectraForPreTraining
    else:
        kind = transformers.AutoModelForTokenClassification
    model = load_full_model(kind, folder)
    if model.config.vocab_size < len(tokenizer.vocabulary):
        raise UserError(
            f"{folder} has {model.config.vocab_size:,} embeddings for {len(tokenizer.vocabulary):,} tokens of its tokenizer"
        )
    if head == "replaced" and getattr(model.config, "num_labels", 1) > 2:
        raise UserError(f"{folder} has {model.config.num_labels} labels; it takes one or two: original and replaced")
    adapt = as_generator if head == "words" else as_discriminator
    special = tokenizer.special_ids
    return adapt(model, pad_token_id=special["pad"], sep_token_id=special["sep"])


def max_length_of(network: Any) -> int:
    """The longest input in tokens, [CLS] and [SEP] included."""
    config = network.model.config
    num_positions = getattr(config, "max_position_embeddings", MAX_TOKENS)
    counts_from_padding = any(name in config.model_type for name in ("roberta", "camembert", "mpnet"))
    return num_positions - (config.pad_token_id + 1 if counts_from_padding else 0)

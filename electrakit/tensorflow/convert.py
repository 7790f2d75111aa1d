"""Converts a TensorFlow checkpoint of google-research/electra into folders that transformers opens.

Sizes are read from the shapes of the tensors. Every tensor is used or reported as left out; a missing one is an error.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electrakit.common.errors import UserError
from electrakit.common.ownership import require_replaceable, whole_folder
from electrakit.common.safe_load import quiet_transformers
from electrakit.config.outputs import ConvertConfig
from electrakit.data.tokenizer_files import TokenizerFiles, load_tokenizer
from electrakit.tensorflow.checkpoint_reader import TensorFlowCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

HEAD_SIZE = 64  # google-research/electra: one attention head for each 64 of the hidden size, at least one
OPTIMIZER_VARIABLE = re.compile(r".*/adam_[mv]|(beta[12]_power)")


@dataclass(frozen=True)
class NetworkScopes:
    """One network: its class in transformers, and the scopes of its variables."""

    class_name: str
    body: str  # scope of the layers
    embeddings: str  # a generator usually shares the discriminator's


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote."""

    out: Path  # the discriminator's folder
    generator: Path | None  # the generator's folder inside it, if the checkpoint has one
    settings: dict[str, dict[str, Any]]  # of `discriminator` and `generator`, with transformers' names
    left_out: tuple[str, ...]  # tensors of the checkpoint that are in no network
    num_steps: int | None  # training steps of the checkpoint
    remarks: list[str]  # for the user


def convert(
    checkpoint: str | Path,
    out: str | Path,
    *,
    vocab: str | Path | None = None,
    num_heads: int | None = None,
    overwrite: bool = False,
) -> Converted:
    """Turn a TensorFlow checkpoint of google-research/electra into a transformers model; ConvertConfig explains the settings."""
    config = ConvertConfig(**locals())
    require_replaceable(config.out, "converted", overwrite=config.overwrite)
    prefix = find_prefix(config.checkpoint)
    variables = TensorFlowCheckpoint(prefix)
    networks = find_networks(variables)
    settings = {name: read_sizes(variables, scopes, config.num_heads) for name, scopes in networks.items()}
    num_steps = read_step(variables)
    tokenizer, remarks = read_tokenizer(prefix, config.vocab, settings)
    special = {"pad_token_id": tokenizer.special_ids["pad"], "sep_token_id": tokenizer.special_ids["sep"]}
    used: set[str] = set()
    inputs = (config.checkpoint, prefix.with_name(f"{prefix.name}.index"), config.vocab)
    with whole_folder(config.out, "converted", inputs=inputs, overwrite=config.overwrite) as folder:
        for name, scopes in networks.items():
            inside = folder if name == "discriminator" else folder / name
            used |= write_model(variables, scopes, {**settings[name], **special}, inside)
            tokenizer.save(inside)
    return Converted(
        out=config.out,
        generator=config.out / "generator" if "generator" in networks else None,
        settings=settings,
        left_out=tuple(sorted(set(variables.entries) - used)),
        num_steps=num_steps,
        remarks=remarks,
    )


# --- what the checkpoint has ---------------------------------------------------------------------------------------------


def find_prefix(path: Path) -> Path:
    """The name of a checkpoint's files before `.index`, from that name, one of the files, or their folder."""
    if not path.is_dir():
        name = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name)
        return path.with_name(name)
    found = sorted(file.with_suffix("") for file in path.glob("*.index"))
    state = path / "checkpoint"  # TensorFlow's record of the newest one
    if len(found) > 1 and state.is_file():
        text = state.read_text(encoding="utf-8", errors="replace")
        newest = re.search(r'^model_checkpoint_path: "(?:.*/)?(.+?)"', text, re.M)
        found = [one for one in found if newest and one.name == newest[1]] or found
    if not found:
        raise UserError(f"no TensorFlow checkpoint in {path}: no file there ends in .index")
    if len(found) > 1:
        raise UserError(f"{path} has several checkpoints: name one of {', '.join(map(str, found))}")
    return found[0]


def find_networks(variables: TensorFlowCheckpoint) -> dict[str, NetworkScopes]:
    """The networks of a checkpoint: a discriminator, and a generator if there is one."""
    scopes = {name.split("/")[0] for name in variables.entries}
    networks = {"discriminator": NetworkScopes("ElectraForPreTraining", "electra", "electra")}
    if "electra" not in scopes:
        raise UserError(
            f"{variables.index} has no variables of google-research/electra; it has {', '.join(sorted(scopes)[:5]) or 'none'}"
        )
    if scopes & {"generator", "generator_predictions"}:
        # Without a body of its own, the generator shares everything but its head.
        body = "generator" if "generator" in scopes else "electra"
        has_embeddings = "generator/embeddings/word_embeddings" in variables.entries
        networks["generator"] = NetworkScopes("ElectraForMaskedLM", body, "generator" if has_embeddings else "electra")
    return networks


def read_sizes(variables: TensorFlowCheckpoint, scopes: NetworkScopes, num_heads: int | None) -> dict[str, Any]:
    """The settings of a network, with transformers' names, from the shapes of its variables."""
    layers = [re.match(rf"{scopes.body}/encoder/layer_(\d{{1,4}})/", name) for name in variables.entries]
    num_layers = len({found[1] for found in layers if found})
    vocab_size, embedding_size = matrix(variables, f"{scopes.embeddings}/embeddings/word_embeddings")
    hidden_size, ffn_size = matrix(variables, f"{scopes.body}/encoder/layer_0/intermediate/dense/kernel")
    heads = num_heads if num_heads is not None and scopes.body == "electra" else max(1, hidden_size // HEAD_SIZE)
    if heads < 1 or hidden_size % heads:
        raise UserError(f"the hidden size {hidden_size} does not divide by {heads} attention heads; use --num-heads")
    return {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn_size,
        "max_position_embeddings": matrix(variables, f"{scopes.embeddings}/embeddings/position_embeddings")[0],
        "type_vocab_size": matrix(variables, f"{scopes.embeddings}/embeddings/token_type_embeddings")[0],
        "layer_norm_eps": 1e-12,  # the default of tf.contrib.layers.layer_norm
        "hidden_act": "gelu",
    }


def matrix(variables: TensorFlowCheckpoint, name: str) -> tuple[int, int]:
    """The shape of a variable that has two dimensions."""
    require(variables, name)
    variables.locate(name)  # the file has that many values
    shape = variables.shapes[name]
    if len(shape) != 2 or min(shape) < 1:
        raise UserError(f"{variables.index}: {name!r} has the shape {shape}, where ELECTRA has a matrix")
    return shape[0], shape[1]


def require(variables: TensorFlowCheckpoint, name: str) -> None:
    if name not in variables.entries:
        raise UserError(
            f"{variables.index} lacks {name!r}, which a pretrained ELECTRA has; take a checkpoint of pretraining, not of fine-tuning"
        )


def read_step(variables: TensorFlowCheckpoint) -> int | None:
    """The number of training steps, if the checkpoint has it."""
    if variables.shapes.get("global_step") != ():
        return None
    step = variables.read("global_step")
    return int(step) if step.dtype.kind == "i" else None


def read_tokenizer(
    prefix: Path, vocab: Path | None, settings: dict[str, dict[str, Any]]
) -> tuple[TokenizerFiles, list[str]]:
    """The tokenizer, and remarks for the user. Every token needs a row of the embeddings; unused rows are reported."""
    path = vocab or prefix.with_name("vocab.txt")
    if not path.is_file():
        raise UserError(f"no vocabulary at {path}; name the checkpoint's vocab.txt with --vocab")
    tokenizer = load_tokenizer(path)
    num_tokens = len(tokenizer.vocabulary)
    num_rows = min(sizes["vocab_size"] for sizes in settings.values())
    if num_tokens > num_rows:
        raise UserError(
            f"the vocabulary has {num_tokens:,} tokens, the embeddings of {prefix} have {num_rows:,} rows; name the right --vocab"
        )
    unused = f"The embeddings have {num_rows:,} rows for {num_tokens:,} tokens." if num_tokens < num_rows else ""
    positions = settings["discriminator"]["max_position_embeddings"]
    config = {**tokenizer.config, "model_max_length": positions}
    return replace(tokenizer, config=config), [remark for remark in (unused, tokenizer.remark) if remark]


# --- weights -------------------------------------------------------------------------------------------------------------


def write_model(
    variables: TensorFlowCheckpoint, scopes: NetworkScopes, settings: dict[str, Any], folder: Path
) -> set[str]:
    """Write a network as transformers stores it; return the names of the variables that it has."""
    import torch
    import transformers

    with torch.device("meta"):  # no memory: all weights come from the checkpoint
        model = getattr(transformers, scopes.class_name)(transformers.ElectraConfig(**settings))
    names = {key: tensorflow_name(key, scopes) for key in model.state_dict()}
    for name in names.values():
        require(variables, name)
    weights = {key: read_weight(variables, name, model.state_dict()[key]) for key, name in names.items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    with quiet_transformers():
        model.save_pretrained(folder)
    return set(names.values())


def tensorflow_name(key: str, scopes: NetworkScopes) -> str:
    """The name in the checkpoint of a weight of transformers.

    >>> tensorflow_name("electra.encoder.layer.3.output.dense.weight", NetworkScopes("ElectraForMaskedLM", "generator", "electra"))
    'generator/encoder/layer_3/output/dense/kernel'
    """
    if key == "generator_lm_head.weight":  # tied to the word embeddings
        key = "electra.embeddings.word_embeddings.weight"
    if key == "generator_lm_head.bias":
        return "generator_predictions/output_bias"
    module, _, kind = key.rpartition(".")
    module = module.replace("dense_prediction", "dense_1").replace("encoder.layer.", "encoder.layer_")
    if module.startswith("electra."):
        scope = scopes.embeddings if module.startswith("electra.embeddings.") else scopes.body
        module = f"{scope}.{module.removeprefix('electra.')}"
    if module.endswith("LayerNorm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    elif module.endswith("_embeddings"):
        return module.replace(".", "/")
    else:
        kind = {"weight": "kernel", "bias": "bias"}[kind]
    return f"{module}.{kind}".replace(".", "/")


def read_weight(variables: TensorFlowCheckpoint, name: str, like: "Tensor") -> "Tensor":
    """A variable as a weight of the same shape as `like`; TensorFlow stores kernels transposed."""
    import torch

    array = variables.read(name)
    is_kernel = name.endswith("/kernel")
    wanted = tuple(like.T.shape if is_kernel else like.shape)
    if array.shape != wanted or array.dtype.kind != "f":
        raise UserError(
            f"{variables.index}: {name!r} is {array.dtype} of shape {array.shape}; by the other sizes it should be float32 of {wanted}"
        )
    return torch.from_numpy(np.ascontiguousarray(array.T if is_kernel else array, np.float32))


# --- the summary ---------------------------------------------------------------------------------------------------------


def summary(made: Converted) -> str:
    """What was written, assumed and left out, and the command that continues pretraining."""
    folders = {"discriminator": made.out, "generator": made.generator}
    lines = [
        f"Wrote {folders[name]}: the {name}, layers {sizes['num_hidden_layers']}, hidden size {sizes['hidden_size']}, "
        f"feed-forward {sizes['intermediate_size']}, heads {sizes['num_attention_heads']}, "
        f"embeddings {sizes['vocab_size']:,} x {sizes['embedding_size']}, positions {sizes['max_position_embeddings']}."
        for name, sizes in made.settings.items()
    ]
    if made.generator is None:
        lines.append("The checkpoint has no generator: the discriminator is alone.")
    lines.append(
        "A checkpoint does not store its number of attention heads: it is one for each 64 of the hidden size, as in all released "
        "models, or --num-heads."
    )
    if made.num_steps is not None:
        lines.append(f"It was trained for {made.num_steps:,} steps.")
    slots = [name for name in made.left_out if OPTIMIZER_VARIABLE.fullmatch(name)]
    others = [name for name in made.left_out if name not in slots]
    left_out = ([f"{len(slots):,} of the optimizer"] if slots else []) + others
    lines.append(f"Left out: {', '.join(left_out) or 'nothing'}.")
    lines += made.remarks
    more = f" --init-generator {made.generator}" if made.generator else ""
    lines.append(
        f"To continue pretraining: electra pretrain electra_small --data SHARDS --run RUN --init-discriminator {made.out}{more}"
    )
    return "\n".join(lines)

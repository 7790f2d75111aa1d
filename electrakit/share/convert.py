"""A checkpoint of google-research/electra in, folders out that transformers opens: the discriminator, and its generator inside.

The sizes are those of the tensors. Every tensor is used or named as left out; one that is missing is an error.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.errors import UserError
from electrakit.loading import quiet
from electrakit.share.tensorflow_checkpoint import TensorFlowCheckpoint
from electrakit.whole import whole_or_nothing

if TYPE_CHECKING:
    from torch import Tensor

HEAD_SIZE = 64  # google-research/electra: one attention head for each 64 of a layer's width, at least one
OPTIMIZER = re.compile(r".*/adam_[mv]|(beta[12]_power)")


@dataclass(frozen=True)
class Part:
    """One network: how transformers calls it, and where its variables are."""

    class_name: str
    body: str
    """Scope of the layers."""
    embeddings: str
    """Scope of the embeddings, which a generator usually has from the discriminator."""


@dataclass(frozen=True)
class Converted:
    """What a conversion wrote."""

    out: Path
    """The discriminator's folder."""
    generator: Path | None
    """The generator's, if the checkpoint has one."""
    settings: dict[str, dict[str, Any]]
    """The sizes of `discriminator` and `generator`, as transformers calls them."""
    left_out: tuple[str, ...]
    """Tensors of the checkpoint that are in no network."""
    num_steps: int | None
    """Steps that the checkpoint was trained for."""
    remarks: tuple[str, ...] = ()
    """What a person should know."""


def convert(
    checkpoint: str | Path, out: str | Path, *, vocab: str | Path | None = None, num_heads: int | None = None
) -> Converted:
    """Turn a TensorFlow checkpoint of google-research/electra into a transformers model; ConvertConfig explains the settings."""
    out = Path(out)
    require_free(out)
    prefix = find_prefix(Path(checkpoint))
    variables = TensorFlowCheckpoint(prefix)
    parts = find_parts(variables)
    settings = {name: read_sizes(variables, part, num_heads) for name, part in parts.items()}
    num_steps = read_step(variables)
    positions = settings["discriminator"]["max_position_embeddings"]
    tokenizer = read_vocabulary(prefix, vocab, positions)
    remarks = (*check_vocabulary(tokenizer, settings, prefix), *([tokenizer.remark] if tokenizer.remark else []))
    special = {"pad_token_id": tokenizer.special_ids["pad"], "sep_token_id": tokenizer.special_ids["sep"]}
    used: set[str] = set()
    with whole_or_nothing(out) as folder:
        for name, part in parts.items():
            inside = folder if name == "discriminator" else folder / name
            used |= write_model(variables, part, {**settings[name], **special}, inside)
            tokenizer.save(inside)
        require_free(out)  # still
    return Converted(
        out=out,
        generator=out / "generator" if "generator" in parts else None,
        settings=settings,
        left_out=tuple(sorted(set(variables.entries) - used)),
        num_steps=num_steps,
        remarks=remarks,
    )


# --- what is there -------------------------------------------------------------------------------------------------------


def require_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already; name another --out, or remove it")


def find_prefix(path: Path) -> Path:
    """The name of a checkpoint's files before `.index`: given so, or as one of the files, or as their folder."""
    if not path.is_dir():
        name = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name)
        return path.with_name(name)
    found = sorted(file.with_suffix("") for file in path.glob("*.index"))
    state = path / "checkpoint"  # TensorFlow's note of which one is the newest
    if len(found) > 1 and state.is_file():
        text = state.read_text(encoding="utf-8", errors="replace")
        newest = re.search(r'^model_checkpoint_path: "(?:.*/)?(.+?)"', text, re.M)
        found = [one for one in found if newest and one.name == newest[1]] or found
    if not found:
        raise UserError(f"no TensorFlow checkpoint in {path}: no file there ends in .index")
    if len(found) > 1:
        raise UserError(f"{path} has several checkpoints: name one of {', '.join(map(str, found))}")
    return found[0]


def find_parts(variables: TensorFlowCheckpoint) -> dict[str, Part]:
    """The networks of a checkpoint: a discriminator, and a generator if there is one."""
    scopes = {name.split("/")[0] for name in variables.entries}
    parts = {"discriminator": Part("ElectraForPreTraining", "electra", "electra")}
    if "electra" not in scopes:
        raise UserError(
            f"{variables.index} has no variables of google-research/electra; it has {', '.join(sorted(scopes)[:5]) or 'none'}"
        )
    if scopes & {"generator", "generator_predictions"}:
        body = "generator" if "generator" in scopes else "electra"  # there they share everything but the heads
        has_own = "generator/embeddings/word_embeddings" in variables.entries
        parts["generator"] = Part("ElectraForMaskedLM", body, "generator" if has_own else "electra")
    return parts


def read_sizes(variables: TensorFlowCheckpoint, part: Part, num_heads: int | None) -> dict[str, Any]:
    """The settings of a network, as transformers calls them, read off the shapes of its variables."""
    layers = [re.match(rf"{part.body}/encoder/layer_(\d{{1,4}})/", name) for name in variables.entries]
    num_layers = len({found[1] for found in layers if found})
    vocab_size, embedding_size = matrix(variables, f"{part.embeddings}/embeddings/word_embeddings")
    hidden_size, ffn_size = matrix(variables, f"{part.body}/encoder/layer_0/intermediate/dense/kernel")
    by_width = max(1, hidden_size // HEAD_SIZE)
    heads = num_heads if num_heads is not None and part.body == "electra" else by_width
    if heads < 1 or hidden_size % heads:
        raise UserError(f"{hidden_size} numbers for a token do not divide by {heads} attention heads; use --num-heads")
    return {
        "vocab_size": vocab_size,
        "embedding_size": embedding_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn_size,
        "max_position_embeddings": matrix(variables, f"{part.embeddings}/embeddings/position_embeddings")[0],
        "type_vocab_size": matrix(variables, f"{part.embeddings}/embeddings/token_type_embeddings")[0],
        "layer_norm_eps": 1e-12,  # of contrib.layers.layer_norm
        "hidden_act": "gelu",
    }


def matrix(variables: TensorFlowCheckpoint, name: str) -> tuple[int, int]:
    """The shape of a variable that has two dimensions."""
    require(variables, name)
    shape = variables.shape(name)
    if len(shape) != 2 or min(shape) < 1:
        raise UserError(f"{variables.index}: {name!r} has the shape {shape}, where ELECTRA has a matrix")
    return shape[0], shape[1]


def require(variables: TensorFlowCheckpoint, name: str) -> None:
    if name not in variables.entries:
        raise UserError(
            f"{variables.index} lacks {name!r}, which a pretrained ELECTRA has; take a checkpoint of pretraining, not of fine-tuning"
        )


def read_step(variables: TensorFlowCheckpoint) -> int | None:
    """How many steps the training had made, if the checkpoint says so."""
    if variables.shapes.get("global_step") != ():
        return None
    step = variables.read("global_step")
    return int(step) if step.dtype.kind == "i" else None


def read_vocabulary(prefix: Path, vocab: str | Path | None, positions: int) -> TokenizerFiles:
    path = prefix.with_name("vocab.txt") if vocab is None else Path(vocab)
    if not path.is_file():
        raise UserError(f"no vocabulary at {path}; name the checkpoint's vocab.txt with --vocab")
    files = load_tokenizer(path)
    return replace(files, config={**files.config, "model_max_length": positions})


def check_vocabulary(tokenizer: TokenizerFiles, settings: dict[str, dict[str, Any]], prefix: Path) -> list[str]:
    """Every token needs its row of the tables; rows behind the last one are of no use, and worth a remark."""
    num_tokens = len(tokenizer.vocabulary)
    fewest = min(one["vocab_size"] for one in settings.values())
    if num_tokens > fewest:
        raise UserError(
            f"the vocabulary has {num_tokens:,} tokens, the embeddings of {prefix} have {fewest:,} rows; name the right --vocab"
        )
    return [f"The embeddings have {fewest:,} rows for {num_tokens:,} tokens."] if num_tokens < fewest else []


# --- weights -------------------------------------------------------------------------------------------------------------


def write_model(variables: TensorFlowCheckpoint, part: Part, settings: dict[str, Any], folder: Path) -> set[str]:
    """A network as transformers stores it; the names of the variables that went into it."""
    import torch
    import transformers

    with torch.device("meta"):  # without numbers: these are in the checkpoint
        model = getattr(transformers, part.class_name)(transformers.ElectraConfig(**settings))
    names = {key: tensorflow_name(key, part) for key in model.state_dict()}
    for name in names.values():
        require(variables, name)
    weights = {key: read_weight(variables, name, model.state_dict()[key]) for key, name in names.items()}
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    with quiet():
        model.save_pretrained(folder)
    return set(names.values())


def tensorflow_name(key: str, part: Part) -> str:
    """The variable that a weight of transformers was.

    >>> tensorflow_name("electra.encoder.layer.3.output.dense.weight", Part("ElectraForMaskedLM", "generator", "electra"))
    'generator/encoder/layer_3/output/dense/kernel'
    """
    if key == "generator_lm_head.weight":  # the words' table once more
        key = "electra.embeddings.word_embeddings.weight"
    if key == "generator_lm_head.bias":
        return "generator_predictions/output_bias"
    module, _, kind = key.rpartition(".")
    module = module.replace("dense_prediction", "dense_1").replace("encoder.layer.", "encoder.layer_")
    if module.startswith("electra."):
        scope = part.embeddings if module.startswith("electra.embeddings.") else part.body
        module = f"{scope}.{module.removeprefix('electra.')}"
    if module.endswith("LayerNorm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    elif module.endswith("_embeddings"):
        return module.replace(".", "/")
    else:
        kind = {"weight": "kernel", "bias": "bias"}[kind]
    return f"{module}.{kind}".replace(".", "/")


def read_weight(variables: TensorFlowCheckpoint, name: str, like: "Tensor") -> "Tensor":
    """A variable as a weight of the same shape as `like`; TensorFlow has the matrices of layers the other way round."""
    import torch

    array = variables.read(name)
    array = array.T if name.endswith("/kernel") else array
    if array.shape != tuple(like.shape) or array.dtype.kind != "f":
        raise UserError(
            f"{variables.index}: {name!r} is {array.dtype} of shape {variables.shapes[name]}; by the other sizes it should be "
            f"float32 of {tuple(like.shape[::-1] if name.endswith('/kernel') else like.shape)}"
        )
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


# --- what to say ---------------------------------------------------------------------------------------------------------


def summary(made: Converted) -> str:
    """For people: what was written, what was assumed, what was left out, and how to go on."""
    lines = []
    for name, folder in (("discriminator", made.out), ("generator", made.generator)):
        if folder is None:
            lines.append("The checkpoint has no generator: the discriminator is alone.")
            continue
        one = made.settings[name]
        lines.append(
            f"Wrote {folder}: the {name}, layers {one['num_hidden_layers']}, width {one['hidden_size']}, "
            f"feed-forward {one['intermediate_size']}, heads {one['num_attention_heads']}, "
            f"embeddings {one['vocab_size']:,} x {one['embedding_size']}, positions {one['max_position_embeddings']}."
        )
    lines.append(
        "No checkpoint says how many heads there are: taken was one for each 64 of the width, as in all released models, "
        "or what --num-heads says."
    )
    if made.num_steps is not None:
        lines.append(f"It was trained for {made.num_steps:,} steps.")
    slots = [name for name in made.left_out if OPTIMIZER.fullmatch(name)]
    others = [name for name in made.left_out if name not in slots]
    told = ([f"{len(slots):,} of the optimizer"] if slots else []) + others
    lines.append(f"Left out: {', '.join(told) or 'nothing'}.")
    lines += made.remarks
    more = f" --init-generator {made.generator}" if made.generator else ""
    lines.append(
        f"Train on: electra pretrain electra_small --data SHARDS --run RUN --init-discriminator {made.out}{more}"
    )
    return "\n".join(lines)

"""Converts a DeBERTaV3 pair as Microsoft releases it, two pickles, into safetensors folders that transformers opens.

The pickles are read by a process that can do nothing else (`pickle_reader.py`). Every name and shape is checked.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electrakit.common.errors import UserError, one_line
from electrakit.common.ownership import require_replaceable, whole_folder
from electrakit.common.safe_load import explain_load_errors, quiet_transformers
from electrakit.config.outputs import ConvertDebertaConfig
from electrakit.data.tokenizer_files import has_tokenizer_files, load_tokenizer
from electrakit.deberta import pickle_reader

if TYPE_CHECKING:
    from torch import Tensor

DISCRIMINATOR_FILE, GENERATOR_FILE = "pytorch_model.bin", "pytorch_model.generator.bin"
HEAD_FILE = "mask_predictions.safetensors"
HEAD_SIZE, MAX_LENGTH = 64, 512  # of all released models
WORDS = "deberta.embeddings.word_embeddings.weight"
POSITIONS = "deberta.embeddings.position_embeddings.weight"  # of the enhanced mask decoder
DISTANCES = "deberta.encoder.rel_embeddings.weight"
DIFFERENCES = [  # that GDES adds to the generator's tables; the tables beside them are the sums
    f"deberta.embeddings.{table}_embeddings._weight" for table in ("word", "position")
]
CONVOLUTION = "deberta.encoder.conv.conv.weight"
FFN = "deberta.encoder.layer.0.intermediate.dense.weight"
# In config.json, beside the sizes that the tensors have.
SETTINGS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "pad_token_id")


@dataclass(frozen=True)
class ConvertedDeberta:
    """What a conversion wrote."""

    out: Path
    generator: Path | None
    settings: dict[str, dict[str, Any]]
    """Of `discriminator` and `generator`, with transformers' names."""
    remarks: list[str] = field(default_factory=list)


def convert_deberta(
    folder: str | Path, out: str | Path, *, num_heads: int | None = None, overwrite: bool = False
) -> ConvertedDeberta:
    """Turn a DeBERTaV3 pair of Microsoft, whose weights are pickles, into safetensors; ConvertDebertaConfig explains the settings."""
    config = ConvertDebertaConfig(**locals())
    require_replaceable(config.out, "converted", overwrite=config.overwrite)
    if not (config.folder / DISCRIMINATOR_FILE).is_file():
        raise UserError(
            f"{config.folder} has no {DISCRIMINATOR_FILE}: name a folder as Microsoft's repositories have it"
        )
    theirs = read_settings(config.folder)
    tokenizer = load_tokenizer(config.folder) if has_tokenizer_files(config.folder) else None
    files = {"discriminator": config.folder / DISCRIMINATOR_FILE, "generator": config.folder / GENERATOR_FILE}
    settings: dict[str, dict[str, Any]] = {}
    remarks: list[str] = [] if tokenizer else [f"{config.folder} has no tokenizer, such as spm.model: none was written"]
    with whole_folder(config.out, "converted", inputs=[config.folder], overwrite=config.overwrite) as target:
        for name, path in files.items():
            if not path.is_file():
                remarks.append(f"there is no {path.name}: no generator was written")
                continue
            tensors = read_pickle(path)
            settings[name] = read_sizes(tensors, theirs, config.num_heads, path)
            place = target if name == "discriminator" else target / name
            remarks += write_network(name, tensors, settings[name], place, path)
            if tokenizer is not None:
                tokenizer.save(place)
    generator = config.out / "generator" if "generator" in settings else None
    return ConvertedDeberta(config.out, generator, settings, remarks)


def summary(made: ConvertedDeberta) -> str:
    lines = []
    for name, one in made.settings.items():
        sizes = f"{one['num_hidden_layers']} layers of {one['hidden_size']}, {one['vocab_size']:,} tokens"
        lines.append(f"{name}: {sizes}, in {made.out if name == 'discriminator' else made.generator}")
    return "\n".join([*lines, *made.remarks])


# Reading


def read_pickle(path: Path) -> dict[str, "Tensor"]:
    """The tensors of a pickle by name, in float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    limit = path.stat().st_size + 2 * pickle_reader.MARGIN
    with path.open("rb") as file:
        # -P: the folder of the script is not a place to import from.
        command = [sys.executable, "-P", pickle_reader.__file__]
        process = subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        data = process.stdout.read(limit + 1)
        if len(data) > limit:
            process.kill()
        problem = process.stderr.read(10_000).decode(errors="replace")
        process.stdout.close()
        process.stderr.close()
        code = process.wait()
    if code != 0 or len(data) > limit:
        _, _, reason = problem.rpartition(pickle_reader.BEFORE_REASON)
        if code == pickle_reader.NO_SANDBOX:
            raise UserError(
                f"{path} is a pickle, which is read safely only on Linux with seccomp ({' or '.join(pickle_reader.ALLOWED)}), and here "
                f"{one_line(ValueError(reason), 200)}: convert it on such a machine and copy the folder"
            )
        why = reason or f"its reader ended with {code}"
        raise UserError(f"{path} is not read: {one_line(ValueError(why), 200)}; only a state dict of plain tensors is")
    try:
        return {name: tensor.float() for name, tensor in load(data).items()}
    except SafetensorError as error:
        raise UserError(f"{path} is not read: {one_line(error)}") from None


def read_settings(folder: Path) -> dict[str, Any]:
    """What config.json says besides the sizes; it may be missing."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read {path}: {one_line(error)}") from None


def read_sizes(
    tensors: dict[str, "Tensor"], theirs: dict[str, Any], num_heads: int | None, path: Path
) -> dict[str, Any]:
    """The settings of DebertaV2Config, sizes from the shapes of the tensors."""
    for name in (WORDS, DISTANCES, FFN):
        if name not in tensors:
            raise UserError(f"{path}: {name} is missing")
        if tensors[name].dim() != 2:
            raise UserError(f"{path}: {name} has the shape {tuple(tensors[name].shape)}; a matrix is wanted")
    vocab_size, hidden_size = tensors[WORDS].shape
    layers = [re.match(r"deberta\.encoder\.layer\.(\d{1,4})\.", name) for name in tensors]
    heads = num_heads or hidden_size // HEAD_SIZE or 1
    if hidden_size % heads:
        raise UserError(
            f"{path}: its hidden size {hidden_size} does not divide by {heads} heads; name their number: --num-heads"
        )
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": len({found[1] for found in layers if found}),
        "num_attention_heads": heads,
        "intermediate_size": tensors[FFN].shape[0],
        "position_buckets": tensors[DISTANCES].shape[0] // 2,
        "max_position_embeddings": MAX_LENGTH,
    }
    if CONVOLUTION in tensors:
        sizes |= {"conv_kernel_size": tensors[CONVOLUTION].shape[-1], "conv_act": theirs.get("conv_act", "tanh")}
    return sizes | {name: theirs[name] for name in SETTINGS if name in theirs}


# Writing


def write_network(
    name: str, tensors: dict[str, "Tensor"], sizes: dict[str, Any], folder: Path, path: Path
) -> list[str]:
    """Write one network; what transformers has no place for is told."""
    import torch
    import transformers
    from safetensors.torch import save_file

    from electrakit.model.huggingface.names import DEBERTA, DECODER_FILE
    from electrakit.model.huggingface.weights import from_transformers, to_transformers

    is_generator = name == "generator"
    fixed: dict[str, Any] = {**DEBERTA.fixed, "share_att_key": True, "pos_att_type": ["p2c", "c2p"]}
    kind = transformers.DebertaV2ForMaskedLM if is_generator else transformers.DebertaV2ForTokenClassification
    with explain_load_errors(str(path)), torch.device("meta"):  # config.json may have anything
        model = kind(transformers.DebertaV2Config(**sizes, **fixed, legacy=not is_generator))
    remarks = []
    rest = dict(tensors)
    wanted = model.state_dict()
    positions = rest.pop(POSITIONS, None)
    if is_generator:
        if positions is not None:
            shape = (sizes["max_position_embeddings"], sizes["hidden_size"])
            if tuple(positions.shape) != shape:
                raise UserError(f"{path}: {POSITIONS} has the shape {tuple(positions.shape)}, wanted is {shape}")
            remarks.append(
                f"generator: the positions of its enhanced mask decoder are in {DECODER_FILE}, and --generator.enhanced-mask-decoder "
                "starts with them; transformers computes without them, so its predictions differ from those of Microsoft's code"
            )
        rest = {key: value for key, value in rest.items() if not key.startswith("mask_predictions.")}
    else:
        wanted = {key: value for key, value in wanted.items() if not key.startswith("classifier.")}
        head = {key: rest.pop(key) for key in list(rest) if key.startswith("mask_predictions.")}
        check_head(head, sizes["hidden_size"], path)
        # Released files also hold the head of a generator and its positions, and some GDES' differences, which nothing reads.
        rest = {
            key: value
            for key, value in rest.items()
            if not key.startswith("lm_predictions.") and key not in DIFFERENCES
        }
    for key in sorted({*wanted} ^ {*rest}):
        raise UserError(
            f"{path}: {key} is {'missing' if key in wanted else 'unknown'}; it is not a {name} of DeBERTaV3"
        )
    for key, value in rest.items():
        if value.shape != wanted[key].shape:
            shapes = f"{tuple(value.shape)}, wanted is {tuple(wanted[key].shape)}"
            raise UserError(f"{path}: {key} has the shape {shapes} by the sizes of the other tensors")
    with quiet_transformers():
        if is_generator:
            model.load_state_dict(rest, assign=True)
            to_transformers(from_transformers(model)).save_pretrained(folder)
            if positions is not None:
                save_file({"weight": positions.contiguous()}, folder / DECODER_FILE)
        else:
            body: Any = model.deberta
            body.load_state_dict({key.removeprefix("deberta."): value for key, value in rest.items()}, assign=True)
            body.save_pretrained(folder)
            save_file(head, folder / HEAD_FILE)
            remarks.append(
                "discriminator: their detection head adds [CLS] and has a hidden layer, which transformers does not have; it is in "
                f"{HEAD_FILE}, and --init-discriminator starts with a new one"
            )
    return remarks


def check_head(head: dict[str, "Tensor"], hidden: int, path: Path) -> None:
    """Their detection head; Microsoft's code misspells its last layer."""
    last = "classifer" if "mask_predictions.classifer.weight" in head else "classifier"
    shapes = {
        "dense.weight": (hidden, hidden),
        "dense.bias": (hidden,),
        f"{last}.weight": (1, hidden),
        f"{last}.bias": (1,),
    }
    shapes |= {"LayerNorm.weight": (hidden,), "LayerNorm.bias": (hidden,)}
    wanted = {f"mask_predictions.{name}": shape for name, shape in shapes.items()}
    for key in sorted({*wanted} ^ {*head}):
        raise UserError(
            f"{path}: {key} is {'missing' if key in wanted else 'unknown'}; it is not a discriminator of DeBERTaV3"
        )
    for key, shape in wanted.items():
        if tuple(head[key].shape) != shape:
            raise UserError(f"{path}: {key} has the shape {tuple(head[key].shape)}, wanted is {shape}")

"""Settings and shards in, the objective that is trained out: with new weights, or with those of models that exist."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from electrakit.data.tokenizer import TokenizerFiles, load_tokenizer
from electrakit.errors import UserError
from electrakit.loading import readable, require_safe
from electrakit.model.adapt import is_transformers
from electrakit.model.build import CLASSES, THEIR_NAMES, build_network
from electrakit.model.counts import Head, estimate_memory, heads
from electrakit.model.weights import CLASSIC, MODERN, from_transformers
from electrakit.network_config import NetworkConfig
from electrakit.objective.build import build_objective
from electrakit.objective.masking import is_continuation_table
from electrakit.pretrain_config import PretrainConfig, override, with_special_ids
from electrakit.progress import console
from electrakit.train.distributed import Team

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARE_OF_MEMORY = 0.6  # for activations: the rest is for what no formula knows
# model_type -> the classes of transformers with a head for words, and for "replaced"
THEIR_CLASSES = {
    "electra": (CLASSIC.generator_class, CLASSIC.discriminator_class),
    "modernbert": (MODERN.generator_class, MODERN.discriminator_class),
    **{name: classes[1:] for name, classes in CLASSES.items()},
}


def fitted(config: PretrainConfig, data: dict[str, Any], is_custom: bool) -> PretrainConfig:
    """The settings as the shards want them: their vocabulary, their special ids, their rows."""
    if is_custom:  # the networks of the settings are nobody's: they shall not be in the way
        longest = {"max_length": max(data["length"], *(one.max_length for one in config.networks.values()))}
        config = override(config, dict.fromkeys(config.networks, longest))
    config = override(config, {"length": data["length"], "vocab_size": data["vocab_size"]})
    return with_special_ids(config, data["special_ids"])


def new_objective(config: PretrainConfig, special_ids: dict[str, int], existing: dict[str, nn.Module]) -> nn.Module:
    """The objective of a run at its beginning: its weights are a function of the seed, or those of existing networks."""
    torch.manual_seed(config.seed)
    table = None
    if config.objective.whole_words:
        vocabulary = {token: number for number, token in enumerate(tokenizer_of(config).vocabulary)}
        table = is_continuation_table(vocabulary, config.discriminator.vocab_size)
    objective = build_objective(config, special_ids, table)
    for name in ("generator", "discriminator"):  # what they share is then the discriminator's
        if name in existing:
            getattr(objective, name).load_state_dict(existing[name].state_dict())
    return objective


def tokenizer_of(config: PretrainConfig) -> TokenizerFiles:
    assert config.data is not None
    return load_tokenizer(config.data / "tokenizer")


# --- weights that exist --------------------------------------------------------------------------------------------------


def load_existing(config: PretrainConfig) -> tuple[PretrainConfig, dict[str, nn.Module]]:
    """The networks that init_discriminator and init_generator name, and the settings with their sizes."""
    torch.manual_seed(config.seed)  # a head that the model lacks begins like any other
    sizes: dict[str, Any] = {}
    found: dict[str, nn.Module] = {}
    for name, place in {"discriminator": config.init_discriminator, "generator": config.init_generator}.items():
        if place is None:
            continue
        if name not in config.networks:
            raise UserError(f"init_{name} is {place!r}, but this run has no {name}; leave it out")
        check_is_model(name, Path(place))
        tokenizer = tokenizer_of(config)
        is_known = check_vocabulary(tokenizer, place, config)
        model = load_model(place, heads(config)[name])
        fit_table(model, len(tokenizer.vocabulary), is_known, place, config)
        sizes[name], found[name] = as_network(model, heads(config)[name], tokenizer.special_ids["sep"])
    if "discriminator" in found and config.generator is not None and "generator" not in found:
        one = sizes["discriminator"]
        sizes["generator"] = {name: getattr(one, name) for name in ("vocab_size", "embedding_size", "max_length")}
    config = override(config, sizes)
    warn_apart(config, found)
    return config, found


def check_is_model(name: str, place: Path) -> None:
    """A run and its checkpoints are no models: these stand in them."""
    checkpoints = sorted(place.glob("checkpoints/step_*"))
    model = (checkpoints[-1] if checkpoints else place) / name
    if (model / "config.json").exists():
        what = "a run" if checkpoints else "a checkpoint"
        raise UserError(f"init_{name} is {place}: {what}, with the model inside; use --init-{name} {model}")


def load_network(place: str, head: Head, sep_token_id: int) -> tuple[NetworkConfig, nn.Module]:
    """The sizes and the weights of a model, as they are."""
    return as_network(load_model(place, head), head, sep_token_id)


def load_model(place: str, head: Head) -> "PreTrainedModel":
    """A model of transformers that we know, with this head."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    require_safe(place)
    with readable(place):
        theirs = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    if theirs.model_type not in THEIR_CLASSES:
        raise UserError(
            f"{place!r} is a {theirs.model_type} model; known are {', '.join(THEIR_CLASSES)}. Build a pair yourself and call "
            "pretrain(config, objective=...)"
        )
    words, replaced = THEIR_CLASSES[theirs.model_type]
    settings = {} if head == "words" or theirs.model_type == "electra" else {"num_labels": 2}
    kind = getattr(transformers, words if head == "words" else replaced)
    with readable(place):
        model = kind.from_pretrained(place, trust_remote_code=False, use_safetensors=True, **settings)
    return model.float().train()


def fit_table(model: "PreTrainedModel", num_tokens: int, is_known: bool, place: str, config: PretrainConfig) -> None:
    """Cut off the rows that stand in a padded table behind the last token: nobody reads them."""
    num_rows = model.config.vocab_size
    if num_rows == num_tokens:
        return
    what = (
        f"the embeddings of {place} have {num_rows:,} rows, the vocabulary of {config.data} has {num_tokens:,} tokens"
    )
    if not is_known:
        raise UserError(
            f"{what}; copy the model's tokenizer.json into {place}, to see whether they are the same tokens"
        )
    if num_rows < num_tokens:
        raise UserError(
            f"{what}, as that of the model: some have no embedding; add rows with transformers' "
            "resize_token_embeddings, or start from another model"
        )
    model.resize_token_embeddings(num_tokens)
    told = f"{what}: the rows behind them are cut off, also in what is saved"
    console.print(told, style="yellow", markup=False, soft_wrap=True)


def as_network(model: "PreTrainedModel", head: Head, sep_token_id: int) -> tuple[NetworkConfig, nn.Module]:
    """Our network with the weights of a transformers model, or that model in its adapter."""
    theirs: Any = model.config
    if theirs.model_type in {"electra", "modernbert"}:
        network = from_transformers(model, sep_token_id)
        return replace(network.config, sep_token_id=sep_token_id), network
    sizes: dict[str, Any] = {ours: getattr(theirs, name) for ours, name in THEIR_NAMES.items()}
    embedding_size = getattr(theirs, "embedding_size", theirs.hidden_size)
    config = NetworkConfig(body=theirs.model_type, embedding_size=embedding_size, sep_token_id=sep_token_id, **sizes)
    with torch.random.fork_rng(devices=[]):
        adapter = build_network(config, head)
    adapter.model.load_state_dict(model.state_dict())  # type: ignore[union-attr]
    return config, adapter


def check_vocabulary(ours: TokenizerFiles, place: str, config: PretrainConfig) -> bool:
    """The model must know the tokens of the shards by the same numbers. False if it has no tokenizer that could say so."""
    if Path(place).is_dir() and not any((Path(place) / name).exists() for name in ("tokenizer.json", "vocab.txt")):
        console.print(f"{place} has no tokenizer to compare with that of {config.data}", style="yellow", markup=False)
        return False
    theirs, mine = load_tokenizer(place).vocabulary, ours.vocabulary
    if theirs == mine:
        return True
    if len(theirs) != len(mine):
        what = f"it has {len(theirs)} tokens, the shards {len(mine)}"
    else:
        number = next(number for number, pair in enumerate(zip(theirs, mine, strict=True)) if pair[0] != pair[1])
        what = f"token {number} is {theirs[number]!r} there and {mine[number]!r} in the shards"
    raise UserError(
        f"the vocabulary of {place} is not that of {config.data}: {what}; prepare the text with --tokenizer {place}"
    )


def warn_apart(config: PretrainConfig, found: dict[str, nn.Module]) -> None:
    """Two models that were trained with shared embeddings have equal ones."""
    if len(found) < 2 or config.share == "nothing":
        return
    tables = [
        next(each.weight for each in network.modules() if isinstance(each, nn.Embedding)) for network in found.values()
    ]
    if not torch.equal(*tables):
        console.print(
            f"{config.init_generator} and {config.init_discriminator} have different embeddings: the generator takes the "
            "discriminator's, and must get used to them; --share nothing keeps both",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )


# --- how much fits -------------------------------------------------------------------------------------------------------


def choose_micro_batch(config: PretrainConfig, team: Team) -> int:
    """As many rows at a time as fit into memory, in pieces that are as even as can be."""
    num_rows = -(-config.batch_size // team.size)
    for_one = estimate_memory(replace(config, micro_batch=1))
    fixed = for_one.total - for_one.activations
    num_that_fit = (SHARE_OF_MEMORY * free_memory(team) - fixed) / for_one.activations
    num_pieces = -(-num_rows // max(1, min(num_rows, int(num_that_fit))))
    return -(-num_rows // num_pieces)


def free_memory(team: Team) -> float:
    """Bytes that this process may use."""
    if team.device.type == "cuda":
        return torch.cuda.mem_get_info(team.device)[0]
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2]
    with contextlib.suppress(OSError, KeyError):  # Linux
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits = [{line.split(":")[0]: int(line.split()[1]) for line in lines}["MemAvailable"] * 1024]
    with contextlib.suppress(OSError, ValueError):  # a container or a job of a cluster
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def recompute_activations(objective: nn.Module) -> None:
    """Gradient checkpointing, where a network knows how."""
    for module in objective.modules():
        if hasattr(module, "recompute"):
            module.recompute = True  # type: ignore[assignment]
        elif is_transformers(module):
            if not module.supports_gradient_checkpointing:
                raise UserError(f"--recompute: transformers' {type(module).__name__} cannot do it; leave it out")
            module.gradient_checkpointing_enable()  # type: ignore[operator]

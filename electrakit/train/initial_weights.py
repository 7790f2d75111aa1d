"""Builds the objective at the start of a run, with new weights or those of existing models, and fits settings to shards and memory."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.common.hardware import available_memory
from electrakit.common.hashing import hash_file
from electrakit.common.progress import print_message
from electrakit.common.safe_load import explain_load_errors, require_safe
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.config.network import NetworkConfig
from electrakit.config.pretrain import PretrainConfig, override, with_special_ids
from electrakit.data.counts import TokenCounts, count_pairs
from electrakit.data.manifest import PREPARE_AGAIN, read_manifest
from electrakit.data.tokenizer_files import TokenizerFiles, has_tokenizer_files, kind_of_file, load_tokenizer
from electrakit.model.build import CLASSES, THEIR_NAMES, build_network
from electrakit.model.counts import HeadKind, estimate_memory, head_kinds
from electrakit.model.gdes import give_to_generator
from electrakit.model.huggingface.adapt import unwrap
from electrakit.model.huggingface.families import is_transformers, output_table
from electrakit.model.huggingface.names import DECODER_FILE, FAMILIES
from electrakit.model.huggingface.weights import from_transformers
from electrakit.model.match import Embeddings
from electrakit.model.modern import ModernBody
from electrakit.model.neighbours import attend_to_neighbours
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.ngrams import WEIGHTS, Neighbours, NGrams
from electrakit.model.parts import INITIALIZER_RANGE
from electrakit.objective.build import build_objective
from electrakit.objective.masking import is_continuation_table
from electrakit.runs import layout
from electrakit.runs.settings import DataDescription
from electrakit.train.distributed import ProcessGroup
from electrakit.train.word_vectors import WINDOW, word_vectors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Standard deviation of the generator's first logits. Those of a narrow table have .2, and it learns slowly (docs/log.md).
LOGIT_SPREAD = 1.8
SHARE_OF_MEMORY = 0.6  # for activations: the estimate leaves out what libraries allocate
# model_type -> the transformers classes with a head for words, and for "replaced"
THEIR_CLASSES = {
    **{
        name: (FAMILIES[body].generator_class, FAMILIES[body].discriminator_class)
        for name, body in {"electra": "classic", "modernbert": "modern", "deberta-v2": "deberta"}.items()
    },
    **{name: classes[1:] for name, classes in CLASSES.items()},
}


def describe_data(shards: Path) -> DataDescription:
    """What identifies shards, wherever they are."""
    manifest = read_manifest(shards)
    tokenizer = shards / SHARDS_TOKENIZER / "tokenizer.json"
    return DataDescription(
        length=manifest.length,
        vocab_size=manifest.vocab_size,
        special_ids=manifest.special_ids,
        tokenizer=manifest.tokenizer_fingerprint,
        tokenizer_file=hash_file(tokenizer) if tokenizer.exists() else None,
        tokenizer_kind=kind_of_file(tokenizer),
        rows=manifest.num_rows,
        files={file.name: file.xxh3_128 for split in manifest.splits.values() for file in split.files},
    )


def check_tokenizer(shards: Path, data: DataDescription) -> list[str]:
    """Notices about the tokenizer beside shards, which each checkpoint has a copy of: if it is damaged, that is said before training."""
    folder = shards / SHARDS_TOKENIZER
    if data.tokenizer is None:  # not shards of electra prepare
        return []
    if data.tokenizer_file is None:
        raise UserError(f"{folder / 'tokenizer.json'} is missing: {PREPARE_AGAIN}")
    found = load_tokenizer(folder)
    if found.special_ids != data.special_ids:
        raise UserError(
            f"{folder} has the special tokens {found.special_ids}, its shards {data.special_ids}: {PREPARE_AGAIN}"
        )
    if found.fingerprint == data.tokenizer:
        return []
    return [
        f"{folder} was changed after electra prepare, or another version of tokenizers reads it differently; exports have it as it is"
    ]


def fit_to_shards(config: PretrainConfig, data: DataDescription, is_custom: bool) -> PretrainConfig:
    """The settings with the vocabulary, special ids and row length of the shards."""
    if is_custom:  # the networks of the settings are not used: they must not refuse the rows
        longest = {"max_length": max(data.length, *(one.max_length for one in config.networks.values()))}
        config = override(config, dict.fromkeys(config.networks, longest))
    config = override(config, {"length": data.length, "vocab_size": data.vocab_size})
    return with_special_ids(config, data.special_ids)


def new_objective(config: PretrainConfig, special_ids: dict[str, int], existing: dict[str, nn.Module]) -> nn.Module:
    """The objective of a new run. Its weights follow from the seed, or are those of existing networks."""
    torch.manual_seed(config.seed)
    table = None
    if config.objective.whole_words:
        vocabulary = {token: number for number, token in enumerate(tokenizer_of(config).vocabulary)}
        table = is_continuation_table(vocabulary, config.discriminator.vocab_size)
    ngrams = count_ngrams(config, special_ids) if config.ngrams else None
    frequencies = None
    if config.objective.flatten_to == "frequency":
        assert config.data is not None
        frequencies = log_frequencies(count_pairs(config.data, ()))
    objective = build_objective(config, special_ids, table, ngrams, frequencies)
    for name in ("generator", "discriminator"):  # shared weights are then those of the discriminator
        if name in existing:
            getattr(objective, name).load_state_dict(existing[name].state_dict())
    if "generator" not in existing and "discriminator" in existing:
        give_to_generator(objective)  # with share=gdes, as the other ways of sharing do
    return objective


def count_ngrams(config: PretrainConfig, special_ids: dict[str, int]) -> NGrams:
    """Counts of the shards' neighbouring words, in the train split."""
    assert config.data is not None
    counts = count_pairs(config.data, tuple(WEIGHTS))
    pairs = {-distance: counts.after[distance] for distance in WEIGHTS}
    pairs |= {distance: counts.before[distance] for distance in WEIGHTS}
    neighbours = {place: Neighbours(*map(torch.from_numpy, arrays)) for place, arrays in pairs.items()}
    return NGrams(torch.from_numpy(counts.tokens), neighbours, special_ids["pad"])


def log_frequencies(counts: TokenCounts) -> Tensor:
    """(V,); half an occurrence is added to each token, so that none is impossible."""
    numbers = counts.tokens + 0.5
    return torch.from_numpy(numbers / numbers.sum()).log().float()


@torch.no_grad()
def start_from_counts(objective: nn.Module, config: PretrainConfig) -> None:
    """Word vectors from the pairs of words in the shards, and biases that predict frequencies, before the first step."""
    assert config.data is not None
    counts = count_pairs(config.data, range(1, WINDOW + 1))
    by_frequency = log_frequencies(counts)
    saved = getattr(objective, "saved_networks", {name: name for name in layout.NETWORKS}).values()
    attributes = dict.fromkeys((*saved, "corrector"))
    networks = [unwrap(network) for name in attributes if (network := getattr(objective, name, None)) is not None]
    done: set[nn.Parameter] = set()
    for network in networks:
        for table in Embeddings.of(network).word_tables[:1]:
            if table not in done:  # the two networks may share it
                vectors, is_known = word_vectors(counts, table.size(1))
                table[: len(vectors)][is_known] = vectors[is_known] * INITIALIZER_RANGE
                done.add(table)
        bias = network.output_bias if isinstance(network, Generator) else getattr(word_output(network), "bias", None)
        # Beside n-grams a generator begins with nothing to add.
        if bias is not None and not (config.ngrams and network is getattr(objective, "generator", None)):
            bias[: len(by_frequency)] = by_frequency
            if isinstance(network, Generator):
                spread = INITIALIZER_RANGE * math.sqrt(network.config.embedding_size)  # of the logits of a normed state
                network.head.get_submodule("norm").get_parameter("weight").fill_(LOGIT_SPREAD / spread)
        if isinstance(network, Discriminator) and not network.gives_energies:
            network.score.bias.fill_(math.log(config.objective.mask_prob / (1 - config.objective.mask_prob)))


def start_at_neighbours(objective: nn.Module) -> None:
    """The first attention heads of every body look at neighbouring tokens."""
    for body in objective.modules():
        if isinstance(body, ModernBody):
            attend_to_neighbours(body)


def word_output(network: nn.Module) -> nn.Module | None:
    """The output layer of a transformers masked language model."""
    return output_table(network) if is_transformers(network) else None


def tokenizer_of(config: PretrainConfig) -> TokenizerFiles:
    assert config.data is not None
    return load_tokenizer(config.data / SHARDS_TOKENIZER)


# Existing weights


def load_existing(config: PretrainConfig) -> tuple[PretrainConfig, dict[str, nn.Module]]:
    """The networks that init_discriminator and init_generator name, and the settings with their sizes."""
    torch.manual_seed(config.seed)  # for a head that the model lacks
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
        model = load_model(place, head_kinds(config)[name])
        fit_table(model, len(tokenizer.vocabulary), is_known, place, config)
        sizes[name], found[name] = as_network(model, head_kinds(config)[name], tokenizer.special_ids["sep"])
        if name == "generator" and config.networks[name].enhanced_mask_decoder:
            sizes[name], found[name] = with_mask_decoder(found[name], place)
    if "discriminator" in found and config.generator is not None and "generator" not in found:
        one = sizes["discriminator"]
        sizes["generator"] = {name: getattr(one, name) for name in ("vocab_size", "embedding_size", "max_length")}
    config = override(config, sizes)
    warn_if_embeddings_differ(config, found)
    return config, found


def check_is_model(name: str, place: Path) -> None:
    """Refuse a run or a checkpoint, and name the model inside."""
    steps = layout.checkpoint_steps(place)
    model = (layout.checkpoint_path(place, steps[-1]) if steps else place) / name
    if (model / "config.json").exists():
        what = "a run" if steps else "a checkpoint"
        raise UserError(f"init_{name} is {place}: {what}, with the model inside; use --init-{name} {model}")


def load_model(place: str, head: HeadKind) -> "PreTrainedModel":
    """A transformers model of a known type, with this head."""
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    require_safe(place)
    with explain_load_errors(place):
        theirs = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        if theirs.model_type not in THEIR_CLASSES:
            raise UserError(
                f"{place!r} is a {theirs.model_type} model; known are {', '.join(THEIR_CLASSES)}. Build a pair yourself and call "
                "pretrain(config, objective=...)"
            )
        words, replaced = THEIR_CLASSES[theirs.model_type]
        settings = {} if head == "words" or theirs.model_type == "electra" else {"num_labels": 2}
        kind = getattr(transformers, words if head == "words" else replaced)
        model = kind.from_pretrained(place, trust_remote_code=False, use_safetensors=True, **settings)
    return model.float().train()


def fit_table(model: "PreTrainedModel", num_tokens: int, is_known: bool, place: str, config: PretrainConfig) -> None:
    """Cut off the padding rows of the embeddings, which belong to no token."""
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
    head, body = getattr(model, "lm_predictions", None), cast("PreTrainedModel", model.base_model)
    if head is None:
        model.resize_token_embeddings(num_tokens)
    else:  # DeBERTa's newer head, of which transformers would cut the wrong layer
        body.resize_token_embeddings(num_tokens)
        head.lm_head.bias = nn.Parameter(head.lm_head.bias[:num_tokens].detach())
    print_message(f"{what}: the rows after them are cut off, also in what is saved", "yellow")


def as_network(model: "PreTrainedModel", head: HeadKind, sep_token_id: int) -> tuple[NetworkConfig, nn.Module]:
    """Our network with the weights of a transformers model, or that model in its adapter."""
    theirs: Any = model.config
    if theirs.model_type in {"electra", "modernbert", "deberta-v2"}:
        network = from_transformers(model, sep_token_id)
        return replace(network.config, sep_token_id=sep_token_id), network
    sizes: dict[str, Any] = {ours: getattr(theirs, name) for ours, name in THEIR_NAMES.items()}
    embedding_size = getattr(theirs, "embedding_size", theirs.hidden_size)
    config = NetworkConfig(body=theirs.model_type, embedding_size=embedding_size, sep_token_id=sep_token_id, **sizes)
    with torch.random.fork_rng(devices=[]):
        adapter = build_network(config, head)
    adapter.model.load_state_dict(model.state_dict())  # type: ignore[union-attr]
    return config, adapter


def with_mask_decoder(network: nn.Module, place: str) -> tuple[NetworkConfig, Generator]:
    """A generator with DeBERTaV3's enhanced mask decoder. Its positions are in a file beside the weights, or new."""
    if not isinstance(network, Generator) or network.config.body != "deberta":
        raise UserError(f"generator.enhanced_mask_decoder goes with body='deberta', {place} has another: leave it out")
    config = replace(network.config, enhanced_mask_decoder=True)
    made = Generator(config)
    made.load_state_dict(network.state_dict(), strict=False)
    path = Path(place) / DECODER_FILE
    if path.is_file():
        with explain_load_errors(str(path)):
            made.body.get_submodule("position").load_state_dict(load_file(path))
    return config, made


def check_vocabulary(ours: TokenizerFiles, place: str, config: PretrainConfig) -> bool:
    """Refuse a model whose tokens have other ids than those of the shards. False if it has no tokenizer to compare."""
    if Path(place).is_dir() and not has_tokenizer_files(Path(place)):
        print_message(f"{place} has no tokenizer to compare with that of {config.data}", "yellow")
        return False
    tokenizer = load_tokenizer(place)
    theirs, mine = tokenizer.vocabulary, ours.vocabulary
    if theirs == mine:
        return True
    what = f"it has {tokenizer.summary}, the shards {ours.summary}"
    if tokenizer.summary == ours.summary:
        number = next(number for number, pair in enumerate(zip(theirs, mine, strict=True)) if pair[0] != pair[1])
        what = f"token {number} is {theirs[number]!r} there and {mine[number]!r} in the shards"
    raise UserError(
        f"the vocabulary of {place} is not that of {config.data}: {what}; prepare the text with --tokenizer {place}"
    )


def warn_if_embeddings_differ(config: PretrainConfig, found: dict[str, nn.Module]) -> None:
    """Warn if two models that are to share embeddings have different ones."""
    if len(found) < 2 or config.share in ("nothing", "gdes"):
        return
    tables = [
        next(each.weight for each in network.modules() if isinstance(each, nn.Embedding)) for network in found.values()
    ]
    if not torch.equal(*tables):
        print_message(
            f"{config.init_generator} and {config.init_discriminator} have different embeddings: the generator takes the "
            "discriminator's, and must get used to them; --share nothing keeps both",
            "yellow",
        )


# Memory


def choose_micro_batch(config: PretrainConfig, group: ProcessGroup) -> int:
    """As many rows as fit into memory, in micro-batches of about equal size."""
    num_rows = -(-config.batch_size // group.world_size)
    for_one = estimate_memory(replace(config, micro_batch=1))
    fixed = for_one.total - for_one.activations
    num_that_fit = (SHARE_OF_MEMORY * free_memory(group) - fixed) / for_one.activations
    num_micro_batches = -(-num_rows // max(1, min(num_rows, int(num_that_fit))))
    return -(-num_rows // num_micro_batches)


def free_memory(group: ProcessGroup) -> float:
    """Bytes that this process may use."""
    if group.device.type == "cuda":
        return torch.cuda.mem_get_info(group.device)[0]
    return available_memory() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def recompute_activations(objective: nn.Module) -> None:
    """Gradient checkpointing, where a network supports it."""
    for module in objective.modules():
        if hasattr(module, "recompute"):
            module.recompute = True  # type: ignore[assignment]
        elif is_transformers(module):
            if not module.supports_gradient_checkpointing:
                raise UserError(f"--recompute: transformers' {type(module).__name__} cannot do it; leave it out")
            module.gradient_checkpointing_enable()

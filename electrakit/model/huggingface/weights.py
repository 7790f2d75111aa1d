"""Converts our networks to transformers models and back: the same weights under other names, the same logits.

`classic` is ElectraForMaskedLM and ElectraForPreTraining, `modern` is ModernBertForMaskedLM and
ModernBertForTokenClassification, `deberta` is DebertaV2ForMaskedLM and DebertaV2ForTokenClassification. Token classifiers
have two labels, original and replaced: our logit x becomes (0, x), and their two logits become their difference, so that a
round trip loses nothing.
"""

import re
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.model.gdes import gdes_tables, merge
from electrakit.model.huggingface.names import DEBERTA, DEBERTA_NEW, ENERGY_MARK, FAMILIES, LABELS, Family
from electrakit.model.networks import Discriminator, Generator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BERT_VOCAB_SIZE, BERT_SEP = 30_522, 102  # of all of Google's models, whose configs do not name [SEP]


def to_transformers(network: Generator | Discriminator) -> "PreTrainedModel":
    """A transformers model with a copy of these weights, on the same device, in the same precision and mode."""
    import transformers
    from transformers.initialization import no_init_weights

    if not isinstance(network, Generator | Discriminator):
        raise UserError(f"{type(network).__name__} is not one of our networks; pass a Generator or a Discriminator")
    if gdes_tables(network):
        network = deepcopy(network)
        merge(network)
    config, is_generator = network.config, isinstance(network, Generator)
    family = FAMILIES[config.body]
    settings = {name: getattr(config, ours) for ours, names in family.fields.items() for name in names}
    settings |= family.fixed | {"sep_token_id": config.sep_token_id} | family.more_settings(config)
    if family.num_labels == 2 and not is_generator:
        settings |= LABELS
    if isinstance(network, Discriminator) and network.gives_energies:
        settings |= ENERGY_MARK
    class_name = family.generator_class if is_generator else family.discriminator_class
    # A random initialisation would be overwritten, and would advance the run's random state.
    with no_init_weights():
        model = getattr(transformers, class_name)(getattr(transformers, family.config_class)(**settings))
    model.tie_weights()
    ours = network.state_dict()
    theirs: dict[str, Tensor] = {}
    for key, names in _their_names(network, family).items():
        theirs |= dict(zip(names, _split(key, ours[key], len(names), family), strict=True))
    if is_generator:
        theirs[family.output_table] = ours["body.embeddings.word.weight"]
        theirs |= {} if family.output_bias is None else {family.output_bias: ours["output_bias"]}
    like = ours["body.embeddings.word.weight"]
    model.to(device=like.device, dtype=like.dtype).load_state_dict(theirs)
    assert not is_generator or model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return model.train(network.training)


def from_transformers(model: "PreTrainedModel", sep_token_id: int | None = None) -> Generator | Discriminator:
    """Our network with a copy of this model's weights, on the same device, in the same precision and mode.

    `sep_token_id` is needed only where the model's config does not name it and the vocabulary is not BERT's.
    """
    family, network_class = _find_class(model)
    config = _our_config(model.config, family, sep_token_id)
    theirs = model.state_dict()
    word = theirs[family.modules["body.embeddings.word"][0] + ".weight"]
    if network_class is Generator and not torch.equal(theirs[family.output_table], word):
        raise UserError(
            f"{type(model).__name__}: {family.output_table} is not the word-embedding table; call tie_weights() first"
        )
    with torch.random.fork_rng(devices=[]):
        network = network_class(config).to(device=word.device, dtype=word.dtype)
    ours = {
        key: _merge(key, [theirs[name] for name in names], family)
        for key, names in _their_names(network, family).items()
    }
    network.load_state_dict(ours)
    return network.train(model.training)


def _their_names(network: Generator | Discriminator, family: Family) -> dict[str, tuple[str, ...]]:
    """Each key of our state dict: the keys of theirs."""
    kind = "generator." if isinstance(network, Generator) else "discriminator."
    names = {}
    for key in network.state_dict():
        number = "".join(re.findall(r"(?<=layers\.)\d+", key))
        ours = key.replace(f"layers.{number}.", "layers.*.") if key.startswith("body.") else kind + key
        module, _, ending = ours.rpartition(".")
        theirs = family.modules.get(ours) or tuple(f"{name}.{ending}" for name in family.modules[module])
        names[key] = tuple(name.replace("*", number) for name in theirs)
    return names


def _split(key: str, tensor: Tensor, num_parts: int, family: Family) -> tuple[Tensor, ...]:
    if family.num_labels == 2 and key.startswith("score."):
        return (torch.cat([torch.zeros_like(tensor), tensor]),)  # logits (0, x)
    return tensor.chunk(num_parts)


def _merge(key: str, tensors: list[Tensor], family: Family) -> Tensor:
    if family.num_labels == 2 and key.startswith("score."):
        return tensors[0][1:] - tensors[0][:1]
    return torch.cat(tensors)


def _our_config(theirs: Any, family: Family, sep_token_id: int | None) -> NetworkConfig:
    class_name = type(theirs).__name__
    for name, value in family.fixed.items():
        if getattr(theirs, name, value) != value:
            raise UserError(
                f"{class_name}.{name} is {getattr(theirs, name)!r}; our {family.body} body has {value!r} only"
            )
    values: dict[str, Any] = {"body": family.body, "sep_token_id": _find_sep(theirs, family, sep_token_id)}
    for ours, names in family.fields.items():
        found = [getattr(theirs, name) for name in names]
        if len(set(found)) > 1:
            raise UserError(
                f"{class_name}: {' and '.join(names)} are {found}; ours is one setting, {ours}: make them equal"
            )
        if found[0] is None:
            raise UserError(f"{class_name}.{names[0]} is None; set it to a number")
        values[ours] = found[0]
    return NetworkConfig(**values, **family.more_values(theirs))


def _find_sep(theirs: Any, family: Family, asked: int | None) -> int | None:
    if asked is not None:
        return asked
    if hasattr(theirs, "sep_token_id"):
        return theirs.sep_token_id
    if theirs.vocab_size == BERT_VOCAB_SIZE:
        return BERT_SEP
    if not family.has_segments:
        return None
    raise UserError(
        f"{type(theirs).__name__} does not name the [SEP] token, after which segment B begins; pass sep_token_id=tokenizer.sep_token_id"
    )


def _find_class(model: Any) -> tuple[Family, type[Generator] | type[Discriminator]]:
    class_name = type(model).__name__
    known: dict[str, tuple[Family, type[Generator] | type[Discriminator]]] = {}
    for family in FAMILIES.values():
        known |= {family.generator_class: (family, Generator), family.discriminator_class: (family, Discriminator)}
    if class_name not in known:
        raise UserError(f"{class_name} has no counterpart among our networks; known are {', '.join(known)}")
    family, network_class = known[class_name]
    if family is DEBERTA and network_class is Generator and not model.legacy:
        family = DEBERTA_NEW
    if network_class is Discriminator and family.num_labels == 2 != model.config.num_labels:
        raise UserError(f"{class_name} has {model.config.num_labels} labels; it takes two, original and replaced")
    return family, network_class

"""Builds the networks of a run from its settings, adapted and tied."""

from typing import Any

from torch import nn

from electrakit.config.network import NetworkConfig
from electrakit.config.pretrain import PretrainConfig
from electrakit.model.counts import HeadKind, has_two_towers, head_kinds
from electrakit.model.huggingface.adapt import as_discriminator, as_generator
from electrakit.model.huggingface.names import CLASSIC
from electrakit.model.networks import BODIES, Discriminator, Generator
from electrakit.model.tie import tie
from electrakit.model.two_tower import TwoTower


def build(config: PretrainConfig) -> tuple[nn.Module | None, nn.Module]:
    """The generator (None where the run has none) and the discriminator, newly initialised, adapted and tied."""
    pair = {
        name: TwoTower(network) if has_two_towers(config, name) else build_network(network, head_kinds(config)[name])
        for name, network in config.networks.items()
    }
    generator, discriminator = pair.get("generator"), pair["discriminator"]
    if generator is not None:
        tie(generator, discriminator, share=config.share)
    return generator, discriminator


def build_network(network: NetworkConfig, head: HeadKind) -> nn.Module:
    """One network with the interface that `as_generator` or `as_discriminator` gives."""
    if network.body in BODIES:
        return Generator(network) if head == "words" else Discriminator(network)
    model = transformers_model(network, head)
    adapt = as_generator if head == "words" else as_discriminator
    return adapt(model, pad_token_id=network.pad_token_id, sep_token_id=network.sep_token_id)


# transformers' classes: the config, the masked language model, the token classifier.
CLASSES = {
    "bert": ("BertConfig", "BertForMaskedLM", "BertForTokenClassification"),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", "AlbertForTokenClassification"),
}
# Our setting: theirs. BERT and ALBERT have ELECTRA's names; BERT has no embedding_size.
THEIR_NAMES = {ours: names[0] for ours, names in CLASSIC.fields.items() if ours != "embedding_size"}


def transformers_model(network: NetworkConfig, head: HeadKind) -> nn.Module:
    """A BERT or ALBERT of transformers. The discriminator is a token classifier with two labels."""
    import transformers  # here, because it takes seconds

    settings: dict[str, Any] = {theirs: getattr(network, ours) for ours, theirs in THEIR_NAMES.items()}
    if network.body == "albert":
        settings |= {"embedding_size": network.embedding_size, "classifier_dropout_prob": network.dropout}
    config, words, replaced = (getattr(transformers, name) for name in CLASSES[network.body])
    return (words if head == "words" else replaced)(config(num_labels=2, **settings))

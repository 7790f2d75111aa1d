"""Settings in, networks out: the pair of a run, adapted and tied."""

from typing import Any

from torch import nn

from electrakit.model.adapt import as_discriminator, as_generator
from electrakit.model.counts import Head, heads
from electrakit.model.encoder import BODIES, Discriminator, Generator
from electrakit.model.tie import tie
from electrakit.network_config import NetworkConfig
from electrakit.pretrain_config import PretrainConfig


def build(config: PretrainConfig) -> tuple[nn.Module | None, nn.Module]:
    """The generator (None where the run has none) and the discriminator, with new weights, adapted and tied."""
    pair = {name: build_network(network, heads(config)[name]) for name, network in config.networks.items()}
    generator, discriminator = pair.get("generator"), pair["discriminator"]
    if generator is not None:
        tie(generator, discriminator, share=config.share)
    return generator, discriminator


def build_network(network: NetworkConfig, head: Head) -> nn.Module:
    """One network, seen as `as_generator` or `as_discriminator` say."""
    if network.body in BODIES:
        return Generator(network) if head == "words" else Discriminator(network)
    model = transformers_model(network, head)
    adapt = as_generator if head == "words" else as_discriminator
    return adapt(model, pad_token_id=network.pad_token_id, sep_token_id=network.sep_token_id)


CLASSES = {  # of transformers: config, a head for words, a head for two labels
    "bert": ("BertConfig", "BertForMaskedLM", "BertForTokenClassification"),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", "AlbertForTokenClassification"),
}
THEIR_NAMES = {  # our setting -> theirs
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_size": "intermediate_size",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "pad_token_id": "pad_token_id",
}


def transformers_model(network: NetworkConfig, head: Head) -> nn.Module:
    """transformers' BERT or ALBERT. A discriminator is a token classifier with two labels."""
    import transformers  # takes seconds

    settings: dict[str, Any] = {theirs: getattr(network, ours) for ours, theirs in THEIR_NAMES.items()}
    if network.body == "albert":
        settings |= {"embedding_size": network.embedding_size, "classifier_dropout_prob": network.dropout}
    config, words, replaced = (getattr(transformers, name) for name in CLASSES[network.body])
    return (words if head == "words" else replaced)(config(num_labels=2, **settings))

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


def transformers_model(network: NetworkConfig, head: Head) -> nn.Module:
    """transformers' BERT or ALBERT. A discriminator is a token classifier with two labels."""
    import transformers  # takes seconds

    settings: dict[str, Any] = {
        "vocab_size": network.vocab_size,
        "num_hidden_layers": network.num_layers,
        "hidden_size": network.hidden_size,
        "intermediate_size": network.ffn_size,
        "num_attention_heads": network.num_heads,
        "max_position_embeddings": network.max_length,
        "hidden_dropout_prob": network.dropout,
        "attention_probs_dropout_prob": network.attention_dropout,
        "pad_token_id": network.pad_token_id,
        "num_labels": 2,
    }
    if network.body == "albert":
        albert = transformers.AlbertConfig(
            embedding_size=network.embedding_size, classifier_dropout_prob=network.dropout, **settings
        )
        words, replaced = transformers.AlbertForMaskedLM, transformers.AlbertForTokenClassification
        return words(albert) if head == "words" else replaced(albert)
    bert = transformers.BertConfig(**settings)
    return transformers.BertForMaskedLM(bert) if head == "words" else transformers.BertForTokenClassification(bert)

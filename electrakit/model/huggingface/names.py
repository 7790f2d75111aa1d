"""What transformers calls our networks: classes, settings and weights, one table for each body."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from electrakit.common.errors import UserError
from electrakit.config.network import Body, NetworkConfig
from electrakit.model import classic, deberta, modern

LABELS = {"id2label": {0: "original", 1: "replaced"}, "label2id": {"original": 0, "replaced": 1}}
ENERGY_MARK = {"electrakit_logits": "energy"}
"""In config.json where a token's logit is its energy, -log p(token | the others): see `Electric`."""
DECODER_FILE = "mask_decoder.safetensors"
"""Beside a DeBERTa generator: the positions of its enhanced mask decoder, which transformers has no place for."""


@dataclass(frozen=True)
class Family:
    """The names that transformers has for one of our bodies. A star is the layer's number."""

    body: Body
    config_class: str
    generator_class: str
    discriminator_class: str
    fields: dict[str, tuple[str, ...]]
    """Our setting: theirs; if several, they must agree."""
    fixed: dict[str, Any]
    """Settings of theirs that have one value in our networks."""
    modules: dict[str, tuple[str, ...]]
    """Our module: theirs; if several, ours has their weights concatenated."""
    output_table: str
    """Their second name for the word embeddings."""
    has_segments: bool
    num_labels: int
    """Of their discriminator: with two, our logit x is (0, x)."""
    output_bias: str | None = None
    """Their second name for the output bias, if they have one."""
    more_settings: Callable[[NetworkConfig], dict[str, Any]] = lambda config: {}
    """More settings of theirs, computed from our config."""
    more_values: Callable[[Any], dict[str, Any]] = lambda theirs: {}
    """More settings of ours, computed from their config."""


def rope_settings(config: NetworkConfig) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": config.rotary_base}
    return {
        "layer_types": ["full_attention"] * config.num_layers,
        "rope_parameters": {"full_attention": rope, "sliding_attention": dict(rope)},
        # The defaults are ids of ModernBERT's vocabulary.
        "cls_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def rope_values(theirs: Any) -> dict[str, Any]:
    class_name = type(theirs).__name__
    if set(theirs.layer_types) != {"full_attention"}:
        raise UserError(
            f"{class_name}.layer_types has {sorted(set(theirs.layer_types))}; our modern body has full_attention only"
        )
    rope = theirs.rope_parameters["full_attention"]
    if rope["rope_type"] != "default":
        raise UserError(
            f"{class_name}.rope_parameters has rope_type {rope['rope_type']!r}; our modern body has 'default' only"
        )
    return {"embedding_size": theirs.hidden_size, "rotary_base": float(rope["rope_theta"])}


COMMON_FIELDS: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_size": ("intermediate_size",),
    "num_heads": ("num_attention_heads",),
    "max_length": ("max_position_embeddings",),
    "pad_token_id": ("pad_token_id",),
}

CLASSIC = Family(
    body="classic",
    config_class="ElectraConfig",
    generator_class="ElectraForMaskedLM",
    discriminator_class="ElectraForPreTraining",
    fields={
        **COMMON_FIELDS,
        "embedding_size": ("embedding_size",),
        "dropout": ("hidden_dropout_prob",),
        "attention_dropout": ("attention_probs_dropout_prob",),
    },
    fixed={
        "hidden_act": "gelu",
        "layer_norm_eps": classic.LAYER_NORM_EPS,
        "type_vocab_size": 2,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    modules={
        "body.embeddings.word": ("electra.embeddings.word_embeddings",),
        "body.embeddings.position": ("electra.embeddings.position_embeddings",),
        "body.embeddings.segment": ("electra.embeddings.token_type_embeddings",),
        "body.embeddings.norm": ("electra.embeddings.LayerNorm",),
        "body.projection": ("electra.embeddings_project",),
        "body.layers.*.qkv": (
            "electra.encoder.layer.*.attention.self.query",
            "electra.encoder.layer.*.attention.self.key",
            "electra.encoder.layer.*.attention.self.value",
        ),
        "body.layers.*.attention_out": ("electra.encoder.layer.*.attention.output.dense",),
        "body.layers.*.attention_norm": ("electra.encoder.layer.*.attention.output.LayerNorm",),
        "body.layers.*.ffn_in": ("electra.encoder.layer.*.intermediate.dense",),
        "body.layers.*.ffn_out": ("electra.encoder.layer.*.output.dense",),
        "body.layers.*.ffn_norm": ("electra.encoder.layer.*.output.LayerNorm",),
        "generator.head.dense": ("generator_predictions.dense",),
        "generator.head.norm": ("generator_predictions.LayerNorm",),
        "generator.output_bias": ("generator_lm_head.bias",),
        "discriminator.head.dense": ("discriminator_predictions.dense",),
        "discriminator.score": ("discriminator_predictions.dense_prediction",),
    },
    output_table="generator_lm_head.weight",
    has_segments=True,
    num_labels=1,
)

MODERN = Family(
    body="modern",
    config_class="ModernBertConfig",
    generator_class="ModernBertForMaskedLM",
    discriminator_class="ModernBertForTokenClassification",
    fields={
        **COMMON_FIELDS,
        "dropout": ("embedding_dropout", "mlp_dropout"),
        "attention_dropout": ("attention_dropout",),
    },
    fixed={
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "norm_eps": modern.LAYER_NORM_EPS,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "classifier_dropout": 0.0,
        "tie_word_embeddings": True,
    },
    modules={
        "body.embeddings.word": ("model.embeddings.tok_embeddings",),
        "body.embeddings.norm": ("model.embeddings.norm",),
        "body.layers.*.attention_norm": ("model.layers.*.attn_norm",),
        "body.layers.*.qkv": ("model.layers.*.attn.Wqkv",),
        "body.layers.*.attention_out": ("model.layers.*.attn.Wo",),
        "body.layers.*.ffn_norm": ("model.layers.*.mlp_norm",),
        "body.layers.*.ffn_in": ("model.layers.*.mlp.Wi",),
        "body.layers.*.ffn_out": ("model.layers.*.mlp.Wo",),
        "body.norm": ("model.final_norm",),
        "generator.head.dense": ("head.dense",),
        "generator.head.norm": ("head.norm",),
        "generator.output_bias": ("decoder.bias",),
        "discriminator.head.dense": ("head.dense",),
        "discriminator.head.norm": ("head.norm",),
        "discriminator.score": ("classifier",),
    },
    output_table="decoder.weight",
    has_segments=False,
    num_labels=2,
    more_settings=rope_settings,
    more_values=rope_values,
)


def distance_settings(config: NetworkConfig) -> dict[str, Any]:
    if config.enhanced_mask_decoder:
        raise UserError(
            "transformers' DebertaV2ForMaskedLM has no enhanced mask decoder: this generator cannot be written for it; "
            "the discriminator can, and the run's own checkpoints hold both"
        )
    settings = {"share_att_key": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1}
    if config.convolution is not None:
        settings |= {"conv_kernel_size": config.convolution, "conv_act": "gelu"}
    return settings


def distance_values(theirs: Any) -> dict[str, Any]:
    """Settings that an older config may lack have transformers' defaults, not ours."""
    wanted: dict[str, tuple[Any, Any]] = {  # what is found, what we have
        "share_att_key": (getattr(theirs, "share_att_key", False), True),
        "pos_att_type": (sorted(theirs.pos_att_type or []), ["c2p", "p2c"]),
        "norm_rel_ebd": (getattr(theirs, "norm_rel_ebd", "none"), "layer_norm"),
        "attention_head_size": (getattr(theirs, "attention_head_size", None), None),
        "embedding_size": (getattr(theirs, "embedding_size", theirs.hidden_size), theirs.hidden_size),
    }
    if (head_size := wanted["attention_head_size"][0]) is not None:
        wanted["attention_head_size"] = (head_size, theirs.hidden_size // theirs.num_attention_heads)
    if theirs.max_relative_positions >= 1:
        wanted["max_relative_positions"] = (theirs.max_relative_positions, theirs.max_position_embeddings)
    width = getattr(theirs, "conv_kernel_size", 0) or 0
    if width > 0:
        wanted["conv_act"] = (getattr(theirs, "conv_act", "tanh"), "gelu")
        wanted["conv_groups"] = (getattr(theirs, "conv_groups", 1), 1)
    if getattr(theirs, "position_buckets", -1) < 2:
        raise UserError(f"{type(theirs).__name__} has no position_buckets; our deberta body needs at least 2")
    for name, (found, ours) in wanted.items():
        if found != ours:
            raise UserError(f"{type(theirs).__name__}.{name} is {found!r}; our deberta body has {ours!r} only")
    return {"embedding_size": theirs.hidden_size, "convolution": width if width > 0 else None}


DEBERTA = Family(
    body="deberta",
    config_class="DebertaV2Config",
    generator_class="DebertaV2ForMaskedLM",
    discriminator_class="DebertaV2ForTokenClassification",
    fields={
        **COMMON_FIELDS,
        "dropout": ("hidden_dropout_prob",),
        "attention_dropout": ("attention_probs_dropout_prob",),
        "position_buckets": ("position_buckets",),
    },
    fixed={
        "hidden_act": "gelu",
        "layer_norm_eps": deberta.LAYER_NORM_EPS,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "norm_rel_ebd": "layer_norm",
        "tie_word_embeddings": True,
    },
    modules={
        "body.embeddings.word": ("deberta.embeddings.word_embeddings",),
        "body.embeddings.norm": ("deberta.embeddings.LayerNorm",),
        "body.distance": ("deberta.encoder.rel_embeddings",),
        "body.distance_norm": ("deberta.encoder.LayerNorm",),
        "body.convolution.mix": ("deberta.encoder.conv.conv",),
        "body.convolution.norm": ("deberta.encoder.conv.LayerNorm",),
        "body.layers.*.qkv": (
            "deberta.encoder.layer.*.attention.self.query_proj",
            "deberta.encoder.layer.*.attention.self.key_proj",
            "deberta.encoder.layer.*.attention.self.value_proj",
        ),
        "body.layers.*.attention_out": ("deberta.encoder.layer.*.attention.output.dense",),
        "body.layers.*.attention_norm": ("deberta.encoder.layer.*.attention.output.LayerNorm",),
        "body.layers.*.ffn_in": ("deberta.encoder.layer.*.intermediate.dense",),
        "body.layers.*.ffn_out": ("deberta.encoder.layer.*.output.dense",),
        "body.layers.*.ffn_norm": ("deberta.encoder.layer.*.output.LayerNorm",),
        "generator.head.dense": ("cls.predictions.transform.dense",),
        "generator.head.norm": ("cls.predictions.transform.LayerNorm",),
        "generator.output_bias": ("cls.predictions.bias",),
        "discriminator.score": ("classifier",),
    },
    output_table="cls.predictions.decoder.weight",
    output_bias="cls.predictions.decoder.bias",
    has_segments=False,
    num_labels=2,
    more_settings=distance_settings,
    more_values=distance_values,
)
# `legacy=False`: Microsoft's names for the same head. We write the older ones, which every version of transformers opens.
DEBERTA_NEW = replace(
    DEBERTA,
    modules={
        **DEBERTA.modules,
        "generator.head.dense": ("lm_predictions.lm_head.dense",),
        "generator.head.norm": ("lm_predictions.lm_head.LayerNorm",),
        "generator.output_bias": ("lm_predictions.lm_head.bias",),
    },
    output_table="deberta.embeddings.word_embeddings.weight",
    output_bias=None,
)

FAMILIES: dict[str, Family] = {family.body: family for family in (CLASSIC, MODERN, DEBERTA)}

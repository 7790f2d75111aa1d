"""What we know of transformers' model families: masked-LM heads, output tables, and which models can be a generator."""

from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor, nn

from electrakit.common.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# By config.model_type: the attributes of a ...ForMaskedLM that it applies to its body's output, one after the other.
MASKED_LM_HEADS = {
    "albert": ("predictions",),
    "bert": ("cls",),
    "camembert": ("lm_head",),
    "convbert": ("generator_predictions", "generator_lm_head"),
    "deberta": ("cls",),
    "deberta-v2": ("cls",),
    "distilbert": ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
    "electra": ("generator_predictions", "generator_lm_head"),
    "ernie": ("cls",),
    "eurobert": ("lm_head",),
    "megatron-bert": ("cls",),
    "modernbert": ("head", "decoder"),
    "mpnet": ("lm_head",),
    "nystromformer": ("cls",),
    "rembert": ("cls",),
    "roberta": ("lm_head",),
    "roberta-prelayernorm": ("lm_head",),
    "roformer": ("cls",),
    "xlm-roberta": ("lm_head",),
}
# How the names of classes end that read from left to right.
CAUSAL = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel", "ForConditionalGeneration")


def has_known_head(model: Any) -> "TypeGuard[PreTrainedModel]":
    """Not for an unknown family, nor for a subclass that may do something else: there the model's own forward is needed."""
    cls = type(model)
    if not (cls.__module__.startswith("transformers.models.") and cls.__name__.endswith("ForMaskedLM")):
        return False
    return model.config.model_type in MASKED_LM_HEADS


def apply_head(model: Any, hidden: Tensor) -> Tensor:
    """The known masked-LM head on the body's last hidden states: (..., H) -> (..., V)."""
    if model.config.model_type.startswith("deberta") and not model.legacy:
        return model.lm_predictions(hidden, model.get_input_embeddings())
    for name in MASKED_LM_HEADS[model.config.model_type]:
        hidden = getattr(model, name)(hidden)
    return hidden


def is_transformers(model: nn.Module) -> "TypeGuard[PreTrainedModel]":
    """Tested by its attributes: importing transformers takes seconds."""
    return hasattr(model, "base_model_prefix") and hasattr(model, "config")


def require_masked_lm(model: Any) -> None:
    """Refuse a transformers model that predicts no words, or that attends to the left only."""
    names = [cls.__name__ for cls in type(model).__mro__]
    # XLM's and Flaubert's WithLMHeadModel are masked language models.
    known = [name for name in names if not name.endswith("WithLMHeadModel")]
    if getattr(model.config, "is_decoder", False) or any(name.endswith(CAUSAL) for name in known):
        raise UserError(
            f"{names[0]} cannot be a generator: it reads from left to right and does not see what follows a [MASK]; "
            "use a ...ForMaskedLM"
        )
    if model.get_output_embeddings() is None and not any(name.endswith("ForMaskedLM") for name in names):
        raise UserError(f"{names[0]} cannot be a generator: it predicts no words; use the family's ...ForMaskedLM")


def output_table(model: Any) -> nn.Module | None:
    """The output layer whose weight can be tied to the word-embedding table: the one of the same shape."""
    layer = model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    table = model.get_input_embeddings().weight
    # The shapes differ in RemBERT (another output size) and in new DeBERTa (a dense layer; the word table is used directly).
    return layer if weight is not None and weight.shape == table.shape else None


def tie_output_table(model: Any) -> None:
    """Tie the output layer to the word table again: after an embedding was swapped it still holds the old one."""
    layer = output_table(model)
    if layer is not None and model.config.tie_word_embeddings:
        layer.weight = model.get_input_embeddings().weight

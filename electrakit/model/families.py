"""What we know of transformers' models: their heads, their output tables, and which of them can guess a masked word."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from electrakit.errors import UserError

Head = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Steps:
    """A head that is a chain of the model's attributes. A class, not a closure: it can be pickled with the adapter."""

    names: tuple[str, ...]

    def __call__(self, model: Any, hidden: Tensor) -> Tensor:
        for name in self.names:
            hidden = getattr(model, name)(hidden)
        return hidden


def _steps(*names: str) -> Head:
    return Steps(names)


def _deberta_head(model: Any, hidden: Tensor) -> Tensor:
    if model.legacy:
        return model.cls(hidden)
    return model.lm_predictions(hidden, model.get_input_embeddings())


HEADS: dict[str, Head] = {  # config.model_type -> what a ...ForMaskedLM does with its body's output
    "albert": _steps("predictions"),
    "bert": _steps("cls"),
    "camembert": _steps("lm_head"),
    "convbert": _steps("generator_predictions", "generator_lm_head"),
    "deberta": _deberta_head,
    "deberta-v2": _deberta_head,
    "distilbert": _steps("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
    "electra": _steps("generator_predictions", "generator_lm_head"),
    "ernie": _steps("cls"),
    "eurobert": _steps("lm_head"),
    "megatron-bert": _steps("cls"),
    "modernbert": _steps("head", "decoder"),
    "mpnet": _steps("lm_head"),
    "nystromformer": _steps("cls"),
    "rembert": _steps("cls"),
    "roberta": _steps("lm_head"),
    "roberta-prelayernorm": _steps("lm_head"),
    "roformer": _steps("cls"),
    "xlm-roberta": _steps("lm_head"),
}


def known_head(model: nn.Module) -> Head | None:
    """None where the model's own forward must do it: an unknown family, or a subclass that may do something else."""
    cls = type(model)
    if not (cls.__module__.startswith("transformers.models.") and cls.__name__.endswith("ForMaskedLM")):
        return None
    return HEADS.get(model.config.model_type)  # type: ignore[union-attr, arg-type]


def is_transformers(model: nn.Module) -> bool:
    """Told by its attributes: importing transformers takes seconds."""
    return hasattr(model, "base_model_prefix") and hasattr(model, "config")


def check_guesses_words(model: Any) -> None:
    """Refuse a transformers model that predicts no words, or that sees only what stands to the left of them."""
    names = [cls.__name__ for cls in type(model).__mro__]
    if getattr(model.config, "is_decoder", False) or any(_is_causal(name) for name in names):
        raise UserError(
            f"{names[0]} cannot be a generator: it reads from left to right and does not see what follows a [MASK]; "
            "use a ...ForMaskedLM"
        )
    if model.get_output_embeddings() is None and not any(name.endswith("ForMaskedLM") for name in names):
        raise UserError(f"{names[0]} cannot be a generator: it predicts no words; use the family's ...ForMaskedLM")


def _is_causal(name: str) -> bool:
    """By the name of the class. XLM's and Flaubert's WithLMHeadModel guess masked words."""
    endings = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel", "ForConditionalGeneration")
    return name.endswith(endings) and not name.endswith("WithLMHeadModel")


def output_table(model: Any) -> nn.Module | None:
    """The layer whose weight is the word table once more, if there is one of the same shape."""
    layer = model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    table = model.get_input_embeddings().weight
    # Of another shape in RemBERT (its own output size) and in new DeBERTa (a dense layer; the word table is used directly).
    return layer if weight is not None and weight.shape == table.shape else None


def tie_output_table(model: Any) -> None:
    """Point the output layer at the word table again: after an embedding was swapped it still holds the old one."""
    layer = output_table(model)
    if layer is not None and model.config.tie_word_embeddings:
        layer.weight = model.get_input_embeddings().weight

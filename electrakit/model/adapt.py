"""Any model in, two interfaces out: ids and positions to word logits, ids to one logit per token."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.model.encoder import Discriminator, Network, segments


def as_generator(model: nn.Module, *, pad_token_id: int = 0, sep_token_id: int | None = None) -> nn.Module:
    """See a model as ids (B, T), positions (B, K) -> logits (B, K, V).

    Takes our own generator or another with this very forward (returned as it is), any transformers `...ForMaskedLM`, or a module that
    maps ids to logits (B, T, V).
    """
    if "positions" in _arguments(model):
        _check_pad(model, pad_token_id)
        return model
    if is_transformers(model):
        tie_output_table(model)
    return GeneratorAdapter(model, InputsFor.of(model, pad_token_id, sep_token_id))


def as_discriminator(
    model: nn.Module,
    *,
    pad_token_id: int = 0,
    sep_token_id: int | None = None,
    discr_dim: int | None = None,
    discr_layer: str | int | None = None,
) -> nn.Module:
    """See a model as ids (B, T) -> logits (B, T); above 0 means replaced.

    Takes our own discriminator (returned as it is), `ElectraForPreTraining`, any transformers `...ForTokenClassification` with one or
    two labels, or a module that maps ids to (B, T), (B, T, 1) or (B, T, 2). With `discr_dim`, the output (B, T, discr_dim) of the layer
    `discr_layer` (a dotted name, or an index into the model's children; the last one by default) goes through a new linear layer.
    """
    if discr_dim is None and discr_layer is not None:
        raise UserError(f"discr_layer={discr_layer!r} needs discr_dim, the size of that layer's output")
    if discr_dim is None and isinstance(model, Discriminator | DiscriminatorAdapter | LayerDiscriminator):
        _check_pad(model, pad_token_id)
        return model
    inputs_for = InputsFor.of(model, pad_token_id, sep_token_id)
    if discr_dim is None:
        return DiscriminatorAdapter(model, inputs_for)
    return LayerDiscriminator(model, inputs_for, discr_dim, -1 if discr_layer is None else discr_layer)


class GeneratorAdapter(nn.Module):
    """A masked language model, asked at some positions only."""

    def __init__(self, model: nn.Module, inputs_for: "InputsFor") -> None:
        super().__init__()
        self.model = model
        self.inputs_for = inputs_for
        self.head = _known_head(model)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # (B, T), (B, K) -> (B, K, V)
        inputs = self.inputs_for(ids)
        if self.head is None:
            return gather(_word_logits(_call(self.model, ids, inputs), ids, self.model), positions)
        hidden = self.model.base_model(ids, **inputs)[0]  # type: ignore[operator]  # (B, T, H)
        return self.head(self.model, gather(hidden, positions))  # the table of V words meets K positions, not T


class DiscriminatorAdapter(nn.Module):
    """A token classifier whose one or two labels become one logit."""

    def __init__(self, model: nn.Module, inputs_for: "InputsFor") -> None:
        super().__init__()
        self.model = model
        self.inputs_for = inputs_for

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T)
        logits = _logits(_call(self.model, ids, self.inputs_for(ids)), self.model)
        if logits.shape == ids.shape:
            return logits
        if logits.shape == (*ids.shape, 1):
            return logits.squeeze(-1)
        if logits.shape == (*ids.shape, 2):
            return logits[..., 1] - logits[..., 0]  # softmax over two labels is a sigmoid of their difference
        raise UserError(
            f"discriminator {_name(self.model)} gives {tuple(logits.shape)} for ids {tuple(ids.shape)}; wanted one or two numbers "
            "per token: add a linear layer, set num_labels=2, or name a layer with discr_dim and discr_layer"
        )


class LayerDiscriminator(nn.Module):
    """A model without a fitting head: the output of one of its layers, and a new linear layer behind it."""

    def __init__(self, model: nn.Module, inputs_for: "InputsFor", dim: int, layer: str | int) -> None:
        super().__init__()
        self.model = model
        self.inputs_for = inputs_for
        self.layer = layer
        find_layer(model, layer)  # complains now, not at the first step
        like = next(model.parameters(), None)
        self.to_logit = nn.Linear(dim, 1) if like is None else nn.Linear(dim, 1, device=like.device, dtype=like.dtype)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T)
        return self.to_logit(self._hidden(ids)).squeeze(-1)

    def _hidden(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, discr_dim)
        layer = find_layer(self.model, self.layer)
        outputs: list[Any] = []
        # Only while this forward runs: a hook that stays would be pickled with the user's model.
        hook = layer.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            _call(self.model, ids, self.inputs_for(ids))
        finally:
            hook.remove()
        where = f"layer {self.layer!r} of discriminator {_name(self.model)}"
        if not outputs:
            raise UserError(f"{where} gave no output: the model's forward does not call it; name another layer")
        hidden = _first_tensor(outputs[-1])
        if hidden is None:
            raise UserError(f"{where} gave {type(outputs[-1]).__name__}, not a tensor; name another layer")
        wanted = (*ids.shape, self.to_logit.in_features)
        if hidden.shape != wanted:
            raise UserError(
                f"{where} gave {tuple(hidden.shape)}, wanted {wanted}; set discr_dim to its size or name another layer"
            )
        can_learn = torch.is_grad_enabled() and any(weight.requires_grad for weight in layer.parameters())
        if can_learn and not hidden.requires_grad:
            raise UserError(
                f"{where} gave an output without gradient (is it inside a reversible block?); name the layer around it"
            )
        return hidden


def find_layer(model: nn.Module, layer: str | int) -> nn.Module:
    """A submodule by its dotted name, or by its index among the children."""
    children = dict(model.named_children())
    if isinstance(layer, int) and -len(children) <= layer < len(children):
        return list(children.values())[layer]
    if isinstance(layer, str) and layer and layer in (modules := dict(model.named_modules())):
        return modules[layer]
    raise UserError(
        f"discriminator {_name(model)} has no layer {layer!r}; it has {', '.join(children) or 'none'} "
        f"(and the dotted names inside them), or an index from {-len(children)} to {len(children) - 1}"
    )


def gather(values: Tensor, positions: Tensor) -> Tensor:  # (B, T, H), (B, K) -> (B, K, H)
    """The values at the chosen positions."""
    return values.gather(1, positions.unsqueeze(-1).expand(-1, -1, values.size(-1)))


# What a model is told besides the ids


@dataclass(frozen=True)
class InputsFor:
    """The keyword arguments of one model's forward, computed from the ids alone."""

    mask_name: str | None
    has_segments: bool
    pad_token_id: int
    sep_token_id: int | None
    mask_dtype: torch.dtype

    @classmethod
    def of(cls, model: nn.Module, pad_token_id: int, sep_token_id: int | None) -> "InputsFor":
        """Read once, from the signature, what the model can be told."""
        _check_pad(model, pad_token_id)
        arguments = _arguments(_body(model) if _known_head(model) else _entrance(model))
        num_segments = getattr(
            getattr(model, "config", None), "type_vocab_size", 2
        )  # RoBERTa has the argument, but one segment only
        inputs_for = cls(
            mask_name=_mask_name(model, arguments),
            has_segments="token_type_ids" in arguments and num_segments > 1,
            pad_token_id=pad_token_id,
            sep_token_id=sep_token_id,
            mask_dtype=torch.long if is_transformers(model) else torch.bool,
        )
        if inputs_for.mask_name is None:
            warnings.warn(
                f"{_name(model)} cannot be told what is padding: its forward takes none of {', '.join(MASK_NAMES)}",
                stacklevel=3,
            )
        return inputs_for

    def __call__(self, ids: Tensor) -> dict[str, Tensor]:  # (B, T) each
        is_real = ids != self.pad_token_id
        inputs = {}
        if self.mask_name is not None:
            inputs[self.mask_name] = is_real.to(self.mask_dtype)
        if self.has_segments:
            inputs["token_type_ids"] = segments(ids, self.pad_token_id, self.sep_token_id)
        return inputs


def _check_pad(model: nn.Module, pad_token_id: int) -> None:
    own = model.config.pad_token_id if is_transformers(model) or isinstance(model, Network) else None  # type: ignore[union-attr]
    if own is not None and own != pad_token_id:
        raise UserError(
            f"{_name(model)} has config.pad_token_id={own}, but pad_token_id={pad_token_id}; make them equal"
        )


MASK_NAMES = ("attention_mask", "mask", "input_mask")
"""What a forward calls the mask that is true for real tokens: transformers, x-transformers, reformer-pytorch."""


def _mask_name(model: nn.Module, arguments: Mapping[str, inspect.Parameter]) -> str | None:
    for name in MASK_NAMES:
        if name in arguments:
            return name
    # ReformerLM.forward(x, **kwargs) hands input_mask down to its attention, where alone it has a name.
    is_inside = _takes_keywords(arguments) and any("input_mask" in _arguments(part) for part in model.modules())
    return "input_mask" if is_inside else None


def _call(model: nn.Module, ids: Tensor, inputs: dict[str, Tensor]) -> Any:
    """Run the model. A plain Sequential hands no keywords on, so its first module is called with them, then the others."""
    if not _is_chain(model):
        return model(ids, **inputs)
    first, *others = model.children()
    output = _call(first, ids, inputs)
    for module in others:
        output = module(output)
    return output


def _is_chain(model: nn.Module) -> bool:
    return type(model) is nn.Sequential and len(model) > 0


def _entrance(model: nn.Module) -> nn.Module:
    """The module that gets the ids."""
    return _entrance(next(model.children())) if _is_chain(model) else model


def _arguments(module: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of a module's forward; if a subclass hands **kwargs on to its parent, the parent's too."""
    module = getattr(module, "_orig_mod", module)  # behind torch.compile
    arguments: dict[str, inspect.Parameter] = {}
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        if forward := vars(cls).get("forward"):
            arguments = {**inspect.signature(forward).parameters, **arguments}
            if not _takes_keywords(arguments):
                break
    return arguments


def _takes_keywords(arguments: Mapping[str, inspect.Parameter]) -> bool:
    return any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments.values())


# What comes out of a model


def _logits(output: Any, model: nn.Module) -> Tensor:
    logits = getattr(output, "logits", None)
    if logits is None:
        logits = _first_tensor(output) if isinstance(output, Tensor | tuple) else None
    if not isinstance(logits, Tensor):
        raise UserError(
            f"{_name(model)} gives no logits, but {type(output).__name__}; use the class with a head for your task"
        )
    return logits


def _word_logits(output: Any, ids: Tensor, model: nn.Module) -> Tensor:  # (B, T, V)
    logits = _logits(output, model)
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise UserError(
            f"generator {_name(model)} gives {tuple(logits.shape)} for ids {tuple(ids.shape)}; wanted one score per token and word"
        )
    return logits


def _first_tensor(output: Any) -> Tensor | None:
    """The tensor itself, or the first of a tuple or of a transformers output: the hidden states."""
    if isinstance(output, Tensor):
        return output
    is_several = isinstance(output, tuple | list | Mapping) and len(output) > 0
    first = (next(iter(output.values())) if isinstance(output, Mapping) else output[0]) if is_several else None
    return first if isinstance(first, Tensor) else None


# What we know of transformers' models

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


def _known_head(model: nn.Module) -> Head | None:
    """None where the model's own forward must do it: an unknown family, or a subclass that may do something else."""
    cls = type(model)
    if not (cls.__module__.startswith("transformers.models.") and cls.__name__.endswith("ForMaskedLM")):
        return None
    return HEADS.get(model.config.model_type)  # type: ignore[union-attr, arg-type]


def _body(model: nn.Module) -> nn.Module:
    return model.base_model  # type: ignore[return-value]


def is_transformers(model: nn.Module) -> bool:
    """Told by its attributes: importing transformers takes seconds."""
    return hasattr(model, "base_model_prefix") and hasattr(model, "config")


def output_table(model: Any) -> nn.Module | None:
    """The transformers layer whose weight is the word table once more, if there is one of the same shape."""
    layer = model.get_output_embeddings()
    weight = getattr(layer, "weight", None)
    table = model.get_input_embeddings().weight
    # Of another shape in RemBERT (its own output size) and in new DeBERTa (a dense layer; the word table is used directly).
    return layer if weight is not None and weight.shape == table.shape else None


def tie_output_table(model: Any) -> None:
    """Point the output layer at the word table again: after an embedding was swapped it still holds the old one."""
    if model.get_output_embeddings() is None and not type(model).__name__.endswith("ForMaskedLM"):
        raise UserError(f"{_name(model)} cannot be a generator: it predicts no words; use the family's ...ForMaskedLM")
    layer = output_table(model)
    if layer is not None and model.config.tie_word_embeddings:
        layer.weight = model.get_input_embeddings().weight


def _name(model: nn.Module) -> str:
    return type(model).__name__

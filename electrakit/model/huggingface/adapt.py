"""Adapters that give any model the interface of our generator (word logits at positions) or discriminator (one logit per token)."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.model.huggingface.families import (
    apply_head,
    has_known_head,
    is_transformers,
    require_masked_lm,
    tie_output_table,
)
from electrakit.model.huggingface.inputs import InputsFor, call_model, original, warn_of_no_segments
from electrakit.model.networks import Discriminator, Network
from electrakit.model.parts import gather


def as_generator(
    model: nn.Module,
    *,
    pad_token_id: int = 0,
    sep_token_id: int | None = None,
    mask_argument: str | None = None,
    masks_padding: bool = False,
) -> nn.Module:
    """Adapt a model to ids (B, T), positions (B, K) -> logits (B, K, V).

    Takes our own generator (returned unchanged, like any module with this forward and the attribute `gathers_positions = True`), any
    transformers `...ForMaskedLM`, or a module that maps ids to logits (B, T, V).

    A plain module gets a padding mask where the argument's meaning is known: `attention_mask`, torch's `key_padding_mask`, and the masks of
    x-transformers and reformer-pytorch. Name any other with `mask_argument`: it gets a bool (B, T) that is true for real tokens, or with
    `masks_padding=True` for padding.
    """
    check_special_ids(model, pad_token_id, sep_token_id)
    if getattr(original(model), "gathers_positions", False):
        return model
    if is_transformers(model):
        require_masked_lm(model)
        tie_output_table(model)
    elif any(getattr(part, "causal", False) is True for part in model.modules()):
        warnings.warn(
            f"generator {_name(model)} is causal: it does not see what follows a [MASK]; build it without causal attention",
            stacklevel=3,
        )
    return GeneratorAdapter(model, InputsFor.of(model, pad_token_id, sep_token_id, mask_argument, masks_padding))


def as_discriminator(
    model: nn.Module,
    *,
    pad_token_id: int = 0,
    sep_token_id: int | None = None,
    discr_dim: int | None = None,
    discr_layer: str | int | None = None,
    mask_argument: str | None = None,
    masks_padding: bool = False,
) -> nn.Module:
    """Adapt a model to ids (B, T) -> logits (B, T); above 0 means replaced.

    Takes our own discriminator (returned unchanged), `ElectraForPreTraining`, any transformers `...ForTokenClassification` with one or
    two labels, or a module that maps ids to (B, T), (B, T, 1) or (B, T, 2). With `discr_dim`, the output (B, T, discr_dim) of the layer
    `discr_layer` (a dotted name, or an index into the model's children; the last one by default) goes through a new linear layer.
    `mask_argument` and `masks_padding` as in `as_generator`.
    """
    if discr_dim is None and discr_layer is not None:
        raise UserError(f"discr_layer={discr_layer!r} needs discr_dim, the size of that layer's output")
    check_special_ids(model, pad_token_id, sep_token_id)
    if discr_dim is None and isinstance(original(model), Discriminator | DiscriminatorAdapter | LayerDiscriminator):
        return model
    inputs_for = InputsFor.of(model, pad_token_id, sep_token_id, mask_argument, masks_padding)
    if discr_dim is None:
        return DiscriminatorAdapter(model, inputs_for)
    return LayerDiscriminator(model, inputs_for, discr_dim, -1 if discr_layer is None else discr_layer)


class Adapter(nn.Module):
    """A user's model, and what it takes besides ids."""

    def __init__(self, model: nn.Module, inputs_for: InputsFor) -> None:
        super().__init__()
        self.model = model
        self.inputs_for = inputs_for

    def logits(self, ids: Tensor) -> Tensor:
        """The logits of the model's own head, whatever their shape."""
        output = call_model(self.model, ids, self.inputs_for(ids))
        logits = getattr(output, "logits", None)
        if logits is None and isinstance(output, Tensor | tuple):
            logits = _first_tensor(output)
        if not isinstance(logits, Tensor):
            raise UserError(
                f"{_name(self.model)} gives no logits, but {type(output).__name__}; use the class with a head for your task"
            )
        return logits

    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden states of a transformers model's body: (B, T, H)."""
        return self.model.base_model(ids, **self.inputs_for(ids))[0]  # type: ignore[operator]


class GeneratorAdapter(Adapter):
    """A masked language model that gives logits at some positions only."""

    gathers_positions = True

    def __init__(self, model: nn.Module, inputs_for: InputsFor) -> None:
        super().__init__(model, inputs_for)
        self.has_known_head = has_known_head(model)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:  # (B, T), (B, K) -> (B, K, V)
        if not self.has_known_head:
            logits = self.logits(ids)
            if logits.ndim != 3 or logits.shape[:2] != ids.shape:
                raise UserError(
                    f"generator {_name(self.model)} gives {tuple(logits.shape)} for ids {tuple(ids.shape)}; "
                    "wanted one score per token and word"
                )
            return gather(logits, positions)
        return self.word_logits(gather(self.hidden(ids), positions))  # the output layer runs at K positions, not T

    def word_logits(self, hidden: Tensor) -> Tensor:
        """The head, where it is known: (..., H) -> (..., V)."""
        return apply_head(self.model, hidden)


class DiscriminatorAdapter(Adapter):
    """A token classifier with one or two labels, as one logit."""

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T)
        logits = self.logits(ids)
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


class LayerDiscriminator(Adapter):
    """A model without a fitting head: the output of one of its layers, then a new linear layer.

    The model's later layers get no gradient: DistributedDataParallel needs find_unused_parameters=True.
    """

    def __init__(self, model: nn.Module, inputs_for: InputsFor, dim: int, layer: str | int) -> None:
        super().__init__(model, inputs_for)
        self.layer = layer
        find_layer(model, layer)  # raises now, not at the first step
        self.to_logit = new_output(dim, model)

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T)
        return self.to_logit(self._hidden(ids)).squeeze(-1)

    def _hidden(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, discr_dim)
        layer = find_layer(self.model, self.layer)
        outputs: list[Any] = []
        # Only during this forward: a lasting hook would be pickled with the user's model.
        hook = layer.register_forward_hook(lambda module, args, output: outputs.append(output))
        try:
            call_model(self.model, ids, self.inputs_for(ids))
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


def _first_tensor(output: Any) -> Tensor | None:
    """The tensor itself, or the first of a tuple or of a transformers output: the hidden states."""
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


# Special tokens and sizes


def unwrap(model: nn.Module) -> nn.Module:
    """The user's model inside an adapter."""
    return model.model if isinstance(model, Adapter) else model


def vocab_size_of(*models: Any) -> int | None:
    """Of the first model that names it."""
    for model in models:
        inner = unwrap(model)
        config = getattr(inner, "config", None)
        for owner, name in ((config, "vocab_size"), (inner, "vocab_size"), (inner, "num_tokens")):
            if isinstance(size := getattr(owner, name, None), int):
                return size
    return None


def special_ids_of(model: nn.Module) -> tuple[int | None, int | None, bool]:
    """The ids of [PAD] and [SEP] that a model was built for, None where it names none; and whether it has segments."""
    model = original(model)
    if isinstance(model, Network):
        return model.config.pad_token_id, model.config.sep_token_id, model.config.body == "classic"
    if isinstance(model, Adapter):
        return model.inputs_for.pad_token_id, model.inputs_for.sep_token_id, model.inputs_for.has_segments
    # transformers' sep_token_id has no effect: the segments come from us.
    return getattr(model.config, "pad_token_id", None) if is_transformers(model) else None, None, False


def sep_token_of(*models: nn.Module | str) -> int | None:
    """Of the first of our networks and adapters that was built with one."""
    known = (special_ids_of(model)[1] for model in models if not isinstance(model, str))
    return next((sep for sep in known if sep is not None), None)


def check_special_ids(model: nn.Module, pad_token_id: int, sep_token_id: int | None) -> None:
    """Refuse a model that was built for other ids of [PAD] and [SEP]; `sep_token_id=None` fits every model."""
    pad, sep, has_segments = special_ids_of(model)
    message = f"{_name(model)} was built with {{0}}={{1}}, but {{0}}={{2}}; make them equal"
    if pad not in (None, pad_token_id):
        raise UserError(message.format("pad_token_id", pad, pad_token_id))
    if sep_token_id not in (None, sep) and (has_segments or sep is not None):
        raise UserError(message.format("sep_token_id", sep, sep_token_id))
    if sep_token_id is None and sep is None and isinstance(original(model), Network) and has_segments:
        warn_of_no_segments(model)


def new_output(dim: int, model: nn.Module) -> nn.Linear:
    """A linear layer to one logit, on the model's device, initialised as in the official code: Glorot, bias 0."""
    like = next(model.parameters(), torch.empty(0))
    layer = nn.Linear(dim, 1, device=like.device, dtype=like.dtype)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _name(model: nn.Module) -> str:
    return type(unwrap(original(model))).__name__

"""Ids in, a model's other arguments out: what is padding, and which segment a token is in."""

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.model.families import is_transformers, known_head
from electrakit.model.tokens import segments

TRUE_FOR_PADDING = {"attention_mask": False, "key_padding_mask": True, "src_key_padding_mask": True}
"""Names of masks that say what they mean: transformers' is true for real tokens, torch's for padding."""
TRUE_FOR_REAL_TOKENS = {"x_transformers": "mask", "reformer_pytorch": "input_mask"}
"""Packages, and the name of their mask."""
AMBIGUOUS = ("mask", "input_mask", "padding_mask", "pad_mask")
"""True for real tokens in some packages, for padding in others: not passed unless we are told."""


@dataclass(frozen=True)
class InputsFor:
    """The keyword arguments of one model's forward, computed from the ids alone."""

    pad_token_id: int
    sep_token_id: int | None
    mask_name: str | None
    masks_padding: bool
    """The mask is true for padding, not for real tokens."""
    mask_dtype: torch.dtype
    has_segments: bool

    @classmethod
    def of(
        cls,
        model: nn.Module,
        pad_token_id: int,
        sep_token_id: int | None,
        mask_argument: str | None = None,
        masks_padding: bool = False,
    ) -> "InputsFor":
        """Read once, from the signature, what the model can be told."""
        arguments = arguments_of(model.base_model if known_head(model) else _entrance(model))  # type: ignore[arg-type]
        if mask_argument is None:
            mask_argument, masks_padding = _find_mask(_entrance(model), arguments)
        elif mask_argument not in arguments and not _takes_keywords(arguments):
            raise UserError(f"{_name(model)} has no argument {mask_argument!r}; it has {', '.join(arguments)}")
        # RoBERTa has the argument, but one segment only
        num_segments = getattr(getattr(model, "config", None), "type_vocab_size", 2)
        inputs_for = cls(
            pad_token_id=pad_token_id,
            sep_token_id=sep_token_id,
            mask_name=mask_argument,
            masks_padding=masks_padding,
            mask_dtype=torch.long if is_transformers(model) else torch.bool,
            has_segments="token_type_ids" in arguments and num_segments > 1,
        )
        if mask_argument is None and not _is_tokenwise(model):
            _warn_of_no_mask(_name(model), arguments)
        if inputs_for.has_segments and sep_token_id is None:
            warn_of_no_segments(model)
        return inputs_for

    def __call__(self, ids: Tensor) -> dict[str, Tensor]:  # (B, T) each
        inputs = {}
        if self.mask_name is not None:
            is_told = ids == self.pad_token_id if self.masks_padding else ids != self.pad_token_id
            inputs[self.mask_name] = is_told.to(self.mask_dtype)
        if self.has_segments:
            inputs["token_type_ids"] = segments(ids, self.pad_token_id, self.sep_token_id)
        return inputs


def call(model: nn.Module, ids: Tensor, inputs: dict[str, Tensor]) -> Any:
    """Run the model. A plain Sequential hands no keywords on, so its first module is called with them, then the others."""
    if not _is_chain(model):
        return model(ids, **inputs)
    first, *others = model.children()
    output = call(first, ids, inputs)
    for module in others:
        output = module(output)
    return output


def arguments_of(module: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of a module's forward; if a subclass hands **kwargs on to its parent, the parent's too."""
    arguments: dict[str, inspect.Parameter] = {}
    for cls in type(original(module)).__mro__:
        if cls is nn.Module:
            break
        if forward := vars(cls).get("forward"):
            arguments = {**inspect.signature(forward).parameters, **arguments}
            if not _takes_keywords(arguments):
                break
    return {name: argument for name, argument in arguments.items() if name != "self"}


def original(model: nn.Module) -> nn.Module:
    """What torch.compile was given."""
    return getattr(model, "_orig_mod", model)


def warn_of_no_segments(model: nn.Module) -> None:
    warnings.warn(
        f"{_name(model)} has two segments, but no sep_token_id: every token will be in the first; "
        "pass sep_token_id=tokenizer.sep_token_id if rows are pairs",
        stacklevel=4,
    )


def _find_mask(model: nn.Module, arguments: Mapping[str, inspect.Parameter]) -> tuple[str | None, bool]:
    """The mask's name, and whether it is true for padding; None where that is not known."""
    for name, masks_padding in TRUE_FOR_PADDING.items():
        if name in arguments:
            return name, masks_padding
    for package, name in TRUE_FOR_REAL_TOKENS.items():
        # ReformerLM.forward(x, **kwargs) hands input_mask down to its attention, where alone it has a name.
        parts = model.modules() if _takes_keywords(arguments) else [model]
        if any(is_of_package(part, package) and name in arguments_of(part) for part in parts):
            return name, False
    return None, False


TOKENWISE = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.ReLU, nn.GELU, nn.Tanh)
"""Modules that look at each token alone."""


def _is_tokenwise(model: nn.Module) -> bool:
    """Certainly no token sees another, so that none can see padding: a table, or a plain chain of such modules."""
    if type(model) is nn.Sequential:
        return all(_is_tokenwise(part) for part in model)
    return type(model) in TOKENWISE


def _warn_of_no_mask(model_name: str, arguments: Mapping[str, inspect.Parameter]) -> None:
    unclear = next((name for name in AMBIGUOUS if name in arguments), None)
    if unclear is None:
        problem = f"its forward takes none of {', '.join(TRUE_FOR_PADDING)}"
        way_out = "rows without padding need none"
    else:
        problem = f"whether its {unclear!r} is true for real tokens or for padding is not known, so it is not passed"
        way_out = (
            "adapt the model yourself with as_generator or as_discriminator of electrakit.model.adapt: "
            f"mask_argument={unclear!r} if true means real, and masks_padding=True if it means padding"
        )
    warnings.warn(f"{model_name} is not told what is padding: {problem}; {way_out}", stacklevel=5)


def is_of_package(module: nn.Module, package: str) -> bool:
    """Of this package, or derived from a class of it."""
    return any(cls.__module__.split(".")[0] == package for cls in type(original(module)).__mro__)


def _is_chain(model: nn.Module) -> bool:
    return type(model) is nn.Sequential and len(model) > 0


def _entrance(model: nn.Module) -> nn.Module:
    """The module that gets the ids."""
    return _entrance(next(model.children())) if _is_chain(model) else model


def _takes_keywords(arguments: Mapping[str, inspect.Parameter]) -> bool:
    return any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments.values())


def _name(model: nn.Module) -> str:
    return type(original(model)).__name__

"""Computes a model's other forward arguments from the ids: its padding mask and token_type_ids."""

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.model.huggingface.families import has_known_head, is_transformers
from electrakit.model.layouts import segment_ids

TRUE_FOR_PADDING = {"attention_mask": False, "key_padding_mask": True, "src_key_padding_mask": True}
"""Mask arguments whose name says what they mean: transformers' is true for real tokens, torch's for padding."""
TRUE_FOR_REAL_TOKENS = {"x_transformers": "mask", "reformer_pytorch": "input_mask"}
"""Packages, and the name of their mask argument."""
AMBIGUOUS = ("mask", "input_mask", "padding_mask", "pad_mask")
"""True for real tokens in some packages, for padding in others: not passed unless the user names it."""


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
        """Inspect the signature of the model's forward once."""
        arguments = arguments_of(model.base_model if has_known_head(model) else _entrance(model))
        if mask_argument is None:
            mask_argument, masks_padding = _find_mask(_entrance(model), arguments)
        elif mask_argument not in arguments and not _takes_keywords(arguments):
            raise UserError(f"{_name(model)} has no argument {mask_argument!r}; it has {', '.join(arguments)}")
        # RoBERTa has the argument, but only one segment.
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
        attended = ids != self.pad_token_id
        inputs = {}
        if self.mask_name is not None:
            inputs[self.mask_name] = (~attended if self.masks_padding else attended).to(self.mask_dtype)
        if self.has_segments:
            inputs["token_type_ids"] = segment_ids(ids, attended, self.sep_token_id)
        return inputs


def call_model(model: nn.Module, ids: Tensor, inputs: dict[str, Tensor]) -> Any:
    """Run the model. A Sequential passes no keyword arguments on, so its first module is called with them, then the others."""
    if not _is_chain(model):
        return model(ids, **inputs)
    first, *others = model.children()
    output = call_model(first, ids, inputs)
    for module in others:
        output = module(output)
    return output


def arguments_of(module: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of a module's forward; if a subclass passes **kwargs on to its parent, the parent's too."""
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
    """The module inside torch.compile's wrapper."""
    return getattr(model, "_orig_mod", model)


def warn_of_no_segments(model: nn.Module) -> None:
    warnings.warn(
        f"{_name(model)} has two segments, but no sep_token_id: every token will be in the first; "
        "pass sep_token_id=tokenizer.sep_token_id if rows are pairs",
        stacklevel=4,
    )


def _find_mask(model: nn.Module, arguments: Mapping[str, inspect.Parameter]) -> tuple[str | None, bool]:
    """The mask argument's name, and whether it is true for padding; None where that is not known."""
    for name, masks_padding in TRUE_FOR_PADDING.items():
        if name in arguments:
            return name, masks_padding
    for package, name in TRUE_FOR_REAL_TOKENS.items():
        # ReformerLM.forward(x, **kwargs) passes input_mask down to its attention, the only place where it is named.
        parts = model.modules() if _takes_keywords(arguments) else [model]
        if any(is_of_package(part, package) and name in arguments_of(part) for part in parts):
            return name, False
    return None, False


TOKENWISE = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.ReLU, nn.GELU, nn.Tanh)
"""Modules that treat each token on its own."""


def _is_tokenwise(model: nn.Module) -> bool:
    """Whether no token can see padding: one such module, or a Sequential of them."""
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
            "adapt the model yourself with as_generator or as_discriminator of electrakit.model.huggingface.adapt: "
            f"mask_argument={unclear!r} if true means real, and masks_padding=True if it means padding"
        )
    warnings.warn(f"{model_name} is not told what is padding: {problem}; {way_out}", stacklevel=5)


def is_of_package(module: nn.Module, package: str) -> bool:
    """Whether the module's class, or one that it derives from, is of this package."""
    return any(cls.__module__.split(".")[0] == package for cls in type(original(module)).__mro__)


def _is_chain(model: nn.Module) -> bool:
    return type(model) is nn.Sequential and len(model) > 0


def _entrance(model: nn.Module) -> nn.Module:
    """The module that receives the ids."""
    return _entrance(next(model.children())) if _is_chain(model) else model


def _takes_keywords(arguments: Mapping[str, inspect.Parameter]) -> bool:
    return any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments.values())


def _name(model: nn.Module) -> str:
    return type(original(model)).__name__

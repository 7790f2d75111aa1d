"""Ties the weights of a generator to those of a discriminator: nothing, word tables (GDES), embeddings, lower layers too, the encoder."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, get_args

import torch
from torch import Tensor, nn

from electrakit.common.errors import UserError
from electrakit.config.pretrain import Share
from electrakit.model.gdes import gdes_tables, put_gdes
from electrakit.model.huggingface.adapt import unwrap
from electrakit.model.huggingface.families import is_transformers, output_table, require_masked_lm, tie_output_table
from electrakit.model.huggingface.inputs import TRUE_FOR_REAL_TOKENS, is_of_package
from electrakit.model.match import Embeddings, Replacements, embedding_replacements, encoder_replacements, word_tables
from electrakit.model.networks import Network


def tie(generator: nn.Module, discriminator: nn.Module, share: Share = "embeddings") -> None:
    """Let the generator use the discriminator's parameters: the same objects, not copies.

    - `nothing`: two separate networks; the generator's input and output word tables stay one.
    - `gdes`: the discriminator reads the generator's word table plus a difference of its own, which is 0 at the start. Its loss moves only
      the difference, the generator's loss only the table. All else is separate, positions and norms too. `merge` of
      electrakit.model.gdes makes a discriminator with a table of its own again; checkpoints and exports have one.
    - `embeddings`: word, position and segment tables, the embedding LayerNorm, and the generator's output table. Two networks of
      different families share what both have in the same shape, at least the word table. In plain modules: the tables of the same name.
    - `layers`: the embeddings, and the generator's layers are the discriminator's first ones. What follows the layers, a last norm and the
      heads, stays separate.
    - `encoder`: everything but the heads. The bodies must be equal: sizes, number of heads, and every setting that changes the computation.

    They stay tied after `.to()`, `load_state_dict`, `deepcopy` of the pair and under DDP. Where torch makes new parameters (`.to("meta")`,
    `load_state_dict(assign=True)`), call this again.
    """
    if share not in get_args(Share):
        raise UserError(f"share={share!r} is unknown; choose one of {', '.join(get_args(Share))}")
    generator, discriminator = unwrap(generator), unwrap(discriminator)
    if is_transformers(generator):
        require_masked_lm(generator)
    check_output_table(generator, discriminator)
    if share != "gdes" and gdes_tables(discriminator):
        raise UserError(
            f"share={share!r}, but the discriminator's words follow a generator's (gdes): call merge(discriminator) of "
            "electrakit.model.gdes first"
        )
    if share in ("nothing", "gdes"):
        if shared := shared_parameters(generator, discriminator):
            raise UserError(f"share={share!r}, but generator and discriminator share {shared[0]}; build them apart")
        if share == "gdes":
            for ours, theirs in word_tables(generator, discriminator):
                put_gdes(ours, discriminator, theirs)
    else:
        if share == "embeddings":
            replacements = embedding_replacements(generator, discriminator)
        else:
            replacements = encoder_replacements(generator, discriminator, only_layers=share == "layers")
        _replace(generator, replacements)
        known = {id(parameter) for parameter in generator.parameters()}
        assert all(id(new) in known for _, new in replacements), "a parameter was not replaced"
        generator.is_tied = True  # type: ignore[assignment]
    if is_transformers(generator):
        if share == "embeddings" and output_table(generator) is not None:
            generator.config.tie_word_embeddings = True  # saving, loading and tie_weights() keep it
        tie_output_table(generator)
        layer = output_table(generator)
        is_tied = layer is None or layer.weight is generator.get_input_embeddings().weight
        assert is_tied or not generator.config.tie_word_embeddings, "the output layer holds an old table"


def shared_parameters(generator: nn.Module, discriminator: nn.Module) -> list[str]:
    """The generator's names, output table included, of the parameters that are also the discriminator's."""
    known = {id(parameter) for parameter in discriminator.parameters()}
    named = generator.named_parameters(remove_duplicate=False)
    return [name for name, parameter in named if id(parameter) in known]


def check_output_table(generator: nn.Module, discriminator: nn.Module) -> None:
    """After `generator.words = discriminator.words`, an output layer that was tied to the old table still holds it.

    For reformer-pytorch it is tied again; x-transformers looks its table up. In other plain modules an untied output layer of the
    table's shape may be intended, so there is only a warning.
    """
    generator, discriminator = unwrap(generator), unwrap(discriminator)
    if is_transformers(generator) or isinstance(generator, Network) or getattr(generator, "is_tied", False):
        return  # tied when adapted; looks its table up; tied with every use of the old table
    known = {id(parameter) for parameter in discriminator.parameters()}
    words = next((table for table in Embeddings.of(generator).word_tables if id(table) in known), None)
    if words is None:
        return
    is_known = any(is_of_package(generator, package) for package in TRUE_FOR_REAL_TOKENS)
    for where, module in generator.named_modules():
        for name, parameter in list(module._parameters.items()):
            is_like_it = parameter is not None and parameter is not words and parameter.shape == words.shape
            if not is_like_it or isinstance(module, nn.Embedding):
                continue
            if is_of_package(module, "reformer_pytorch"):  # MatrixMultiply, of weight_tie_embedding=True
                setattr(module, name, words)
            elif not is_known:
                warnings.warn(
                    f"{where}.{name} of generator {type(generator).__name__} has the shape of the word table that it shares with the "
                    "discriminator, but is another parameter; if the two were one before you assigned modules, assign this too, or "
                    "call tie(generator, discriminator) instead",
                    stacklevel=4,
                )


def warn_of_untied_copies(generator: nn.Module, discriminator: nn.Module) -> None:
    """Warn of equal word tables in two parameters: the models were trained tied, and then loaded separately."""
    tables = [Embeddings.of(unwrap(model)).word_tables[:1] for model in (generator, discriminator)]
    if not all(tables):
        return
    (ours,), (theirs,) = tables
    if ours is theirs or ours.is_meta or ours.shape != theirs.shape:
        return
    if ours.device == theirs.device and torch.equal(ours, theirs):
        warnings.warn(
            "generator and discriminator have equal word embeddings in two parameters, which will be trained separately; released pairs "
            "are tied: call tie(generator, discriminator) first",
            stacklevel=4,
        )


def state_once(module: nn.Module) -> dict[str, Tensor]:
    """The state dict with each shared tensor under its first name only, as safetensors needs it."""
    names = first_names(module)
    return {name: tensor for name, tensor in module.state_dict().items() if names[name] == name}


def first_names(module: nn.Module) -> dict[str, str]:
    """For each name in the state dict, the first name of the same tensor."""
    first: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


@torch.no_grad()
def load_state_once(
    module: nn.Module, state: Mapping[str, Tensor], fill: Callable[[Tensor, Tensor], Any] = Tensor.copy_
) -> None:
    """Load a state dict of `state_once` into a module whose weights are tied the same way; any mismatch is an error.

    fill: writes the second tensor into the first, where a copy is not enough.
    """
    mine = state_once(module)
    if differing := sorted(set(mine) ^ set(state)):
        side = "missing from" if differing[0] in mine else "unknown to this model but in"
        raise UserError(f"{differing[0]} is {side} the saved weights; build the pair with the same sizes and share=…")
    for name, tensor in mine.items():
        if tensor.shape != state[name].shape:
            sizes = f"{tuple(state[name].shape)} in the saved weights, {tuple(tensor.shape)} in this model"
            raise UserError(f"{name} has shape {sizes}; build the pair with the same sizes and share=…")
    for name, tensor in mine.items():
        fill(tensor, state[name])


@torch.no_grad()
def copy_encoder(generator: nn.Module, discriminator: nn.Module) -> None:
    """Let the discriminator start from the generator's weights: everything but the heads. The bodies must be equal, as for `encoder`."""
    generator, discriminator = unwrap(generator), unwrap(discriminator)
    for old, new in encoder_replacements(generator, discriminator):
        new.copy_(old)
    for table in gdes_tables(discriminator).values():
        table.delta.zero_()


def _replace(model: nn.Module, replacements: Replacements) -> None:
    """Replace parameters everywhere in the model: an output layer that used the old table uses the new one."""
    new_for = {id(old): new for old, new in replacements}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if id(parameter) in new_for:
                setattr(module, name, new_for[id(parameter)])

"""Two models in, the same two with common weights: nothing, the embeddings, or the whole encoder."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from torch import Tensor, nn

from electrakit.errors import UserError
from electrakit.model.adapt import is_transformers, output_table, tie_output_table
from electrakit.model.encoder import Network

Share = Literal["nothing", "embeddings", "encoder"]


def tie(generator: nn.Module, discriminator: nn.Module, share: Share = "embeddings") -> None:
    """Let the generator use the discriminator's parameters: the very same objects, not copies.

    - `nothing`: two separate networks; the generator's input and output word tables stay one.
    - `embeddings`: word, position and segment tables, the embedding LayerNorm, and the generator's output table. Two networks of
      different families share what both have in the same shape; the word table is a must.
    - `encoder`: everything but the heads; the bodies must be equal.

    Still one after `.to()`, `load_state_dict`, `deepcopy` of the pair and under DDP. Where torch makes new parameters (`.to("meta")`,
    `load_state_dict(assign=True)`), call this again.
    """
    if share not in get_args(Share):
        raise UserError(f"share={share!r} is unknown; choose one of {', '.join(get_args(Share))}")
    generator, discriminator = _unwrap(generator), _unwrap(discriminator)
    if share == "nothing":
        if shared := shared_parameters(generator, discriminator):
            raise UserError(f"share='nothing', but generator and discriminator share {shared[0]}; build them apart")
    else:
        find = embedding_replacements if share == "embeddings" else encoder_replacements
        replacements = find(generator, discriminator)
        _replace(generator, replacements)
        known = {id(parameter) for parameter in generator.parameters()}
        assert all(id(new) in known for _, new in replacements), "a parameter was not replaced"
    if is_transformers(generator):
        _tie_own_tables(generator, is_a_must=share == "embeddings")


def shared_parameters(generator: nn.Module, discriminator: nn.Module) -> list[str]:
    """The generator's names, its output table included, of the parameters that are also the discriminator's."""
    known = {id(parameter) for parameter in discriminator.parameters()}
    return [name for name, parameter in _named(generator) if id(parameter) in known]


def state_once(module: nn.Module) -> dict[str, Tensor]:
    """The state dict with each shared tensor under its first name only, as safetensors wants it."""
    names = _first_names(module)
    return {name: tensor for name, tensor in module.state_dict().items() if names[name] == name}


def load_state_once(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `state_once` gave into a module whose weights are tied the same way; anything missing or unknown is an error."""
    names = _first_names(module)
    wanted = set(names.values())
    if differing := sorted(wanted ^ set(state)):
        side = "missing from" if differing[0] in wanted else "unknown to this model but in"
        raise UserError(f"{differing[0]} is {side} the saved weights; build the pair with the same sizes and share=…")
    module.load_state_dict({name: state[first] for name, first in names.items()})


# The embeddings

PARTS = {  # what a child of `embeddings` is called -> what it is
    "word_embeddings": "word",
    "tok_embeddings": "word",
    "position_embeddings": "position",
    "token_type_embeddings": "segment",
    "LayerNorm": "norm",
    "norm": "norm",
    "word": "word",
    "position": "position",
    "segment": "segment",
}

Replacements = list[tuple[nn.Parameter, nn.Parameter]]
"""The generator's parameter, and the discriminator's that takes its place."""


def embedding_replacements(generator: nn.Module, discriminator: nn.Module) -> Replacements:
    """Pair the embeddings up by what they are, in plain modules by their names."""
    ours, theirs = embedding_parameters(generator), embedding_parameters(discriminator)
    common = [name for name in ours if name in theirs]
    has_words = "word.weight" in ours or "word.weight" in theirs
    if not common or (has_words and "word.weight" not in common):
        raise UserError(
            f"cannot share embeddings: generator has {', '.join(ours) or 'none'}, discriminator {', '.join(theirs) or 'none'}, "
            "none with the same name; assign them yourself (generator.x = discriminator.y) or use share='nothing'"
        )
    is_one_family = _family(generator) == _family(discriminator)
    replacements = []
    for name in common:
        if ours[name].shape == theirs[name].shape:
            replacements.append((ours[name], theirs[name]))
        elif is_one_family or name == "word.weight":
            size, other = tuple(ours[name].shape), tuple(theirs[name].shape)
            raise UserError(
                f"cannot share embeddings: generator has size {size} for {name}, discriminator {other}; "
                "make them equal or use share='nothing'"
            )
    return replacements


def embedding_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of the embeddings by what they are (`word.weight`, `norm.bias`); in a plain module, of each nn.Embedding by name."""
    body = _body(model)
    embeddings = getattr(body, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        tables = [(name, module) for name, module in body.named_modules() if isinstance(module, nn.Embedding)]
        return {f"{name}.{part}": weight for name, table in tables for part, weight in table.named_parameters()}
    parts = {_part(name, child): child for name, child in embeddings.named_children() if name in PARTS}
    width = parts["word"].weight.size(-1) if "word" in parts else None  # type: ignore[operator]
    return {
        f"{part}.{name}": parameter
        for part, child in parts.items()
        for name, parameter in child.named_parameters()
        if parameter.size(-1) == width  # DeBERTa's LayerNorm stands behind the projection: it belongs to the body
    }


def _part(name: str, child: nn.Module) -> str:
    """RoBERTa counts positions from behind its pad id: row 5 is another position than BERT's row 5."""
    offset = getattr(child, "padding_idx", None)
    return f"position_from_{offset + 1}" if PARTS[name] == "position" and offset is not None else PARTS[name]


# The encoder


def encoder_replacements(generator: nn.Module, discriminator: nn.Module) -> Replacements:
    """Pair all parameters of the two bodies up by name."""
    ours, theirs = _body_parameters(generator, discriminator), _body_parameters(discriminator, generator)
    for name in [*ours, *theirs]:
        size, other = (tuple(body[name].shape) if name in body else None for body in (ours, theirs))
        if size != other:
            raise UserError(
                f"cannot share the encoder: generator has size {size} for {name}, discriminator {other}; "
                "give both the same sizes or use share='embeddings'"
            )
    if not ours:
        raise UserError("cannot share the encoder: no parts with the same name; use share='nothing'")
    return [(parameter, theirs[name]) for name, parameter in ours.items()]


def _body_parameters(model: nn.Module, other: nn.Module) -> dict[str, nn.Parameter]:
    body, other_body = _body(model), _body(other)
    if is_transformers(model) or isinstance(model, Network):
        return {name: parameter for name, parameter in _named(body) if not name.startswith("pooler.")}
    heads = _heads(body, other_body)
    return {name: parameter for name, parameter in _named(body) if name.split(".")[0] not in heads}


def _heads(body: nn.Module, other: nn.Module) -> set[str]:
    """The children that only one of two plain modules has; if they have the same ones, the last."""
    names, others = (
        [name for name, child in module.named_children() if any(True for _ in child.parameters())]
        for module in (body, other)
    )
    return set(names) - set(others) or (set(names[-1:]) if names == others else set())


# Helpers


def _replace(model: nn.Module, replacements: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> None:
    """Put new parameters where old ones are, everywhere in the model: an output layer that used the old table uses the new one."""
    new_for = {id(old): new for old, new in replacements}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if id(parameter) in new_for:
                setattr(module, name, new_for[id(parameter)])


def _tie_own_tables(generator: Any, is_a_must: bool) -> None:
    """The output table of a transformers generator is its word table (as configured; always, when embeddings are shared)."""
    if is_a_must and output_table(generator) is not None:
        generator.config.tie_word_embeddings = True  # so that saving, loading and tie_weights() keep it
    tie_output_table(generator)
    layer = output_table(generator)
    is_tied = layer is None or layer.weight is generator.get_input_embeddings().weight
    assert is_tied or not generator.config.tie_word_embeddings, "the output layer holds an old table"


def _unwrap(model: nn.Module) -> nn.Module:
    """The user's model inside an adapter."""
    inner = getattr(model, "model", None)
    return inner if isinstance(inner, nn.Module) and hasattr(model, "inputs_for") else model


def _body(model: nn.Module) -> nn.Module:
    """A transformers model without its head; our network's body; of a Sequential that adds a head to a network, the network."""
    if is_transformers(model):
        return model.base_model  # type: ignore[return-value]
    if isinstance(model, Network):
        return model.body
    first = next(model.children(), None) if type(model) is nn.Sequential else None
    return model if first is None or isinstance(first, nn.Embedding) else _body(first)


def _family(model: nn.Module) -> Any:
    """Within a family, parts of different sizes are a mistake; across families, a difference."""
    if is_transformers(model):
        return model.config.model_type  # type: ignore[union-attr]
    return model.config.body if isinstance(model, Network) else None


def _named(module: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return module.named_parameters(remove_duplicate=False)


def _first_names(module: nn.Module) -> dict[str, str]:
    """For each name in the state dict, the first name of the same tensor."""
    first: dict[int, str] = {}
    state = module.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}

"""Finds the parameters that two models can share: embeddings by what they are, encoders by their names."""

import re
from typing import Any, NamedTuple

from torch import nn

from electrakit.common.errors import UserError
from electrakit.config.pretrain import SHARED_ENCODER_SIZES
from electrakit.model.gdes import gdes_tables
from electrakit.model.huggingface.adapt import vocab_size_of
from electrakit.model.huggingface.families import is_transformers
from electrakit.model.networks import Network

EMBEDDING_PARTS = {  # names of the children of `embeddings`: what they are
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

WORDS = ("word.weight", "word.delta")  # the second is of a GDESEmbedding

Replacements = list[tuple[nn.Parameter, nn.Parameter]]
"""The generator's parameter, and the discriminator's that replaces it."""


def embedding_replacements(generator: nn.Module, discriminator: nn.Module) -> Replacements:
    """Match the embeddings by what they are, in plain modules by their names."""
    ours, theirs = Embeddings.of(generator), Embeddings.of(discriminator)
    names = [name for name in ours.parameters if name in theirs.parameters]
    only_ours, only_theirs = ([name for name in each.parameters if name not in names] for each in (ours, theirs))
    words = {*ours.words} & {*theirs.words}
    is_plain = _family(generator) is None is _family(discriminator)
    # One of two tables without a counterpart may be the word table: not every module knows its vocabulary size.
    if not words or (is_plain and only_ours and only_theirs and vocab_size_of(generator, discriminator) is None):
        raise UserError(
            f"cannot share embeddings: the word tables must have the same name; only the generator has {', '.join(only_ours) or 'none'}, "
            f"only the discriminator {', '.join(only_theirs) or 'none'}; assign them yourself (generator.x = discriminator.y) "
            "or use share='nothing'"
        )
    is_one_family = _family(generator) == _family(discriminator)
    replacements = []
    for name in names:
        old, new = ours.parameters[name], theirs.parameters[name]
        if old.shape == new.shape:
            replacements.append((old, new))
        elif is_one_family or name in words:
            raise UserError(
                f"cannot share embeddings: generator has size {tuple(old.shape)} for {name}, discriminator {tuple(new.shape)}; "
                "make them equal or use share='nothing'"
            )
    return replacements


def word_tables(generator: nn.Module, discriminator: nn.Module) -> list[tuple[nn.Embedding, nn.Embedding]]:
    """The generator's word table and the discriminator's; in plain modules all pairs of the same name that can be one."""
    ours, theirs = _word_modules(generator), _word_modules(discriminator)
    names = [name for name in ours if name in theirs]
    if not names:
        raise UserError(
            f"cannot share embeddings: the word tables must have the same name; the generator has {', '.join(ours) or 'none'}, "
            f"the discriminator {', '.join(theirs) or 'none'}; rename one or use share='nothing'"
        )
    for name in names:
        sizes = [(words.num_embeddings, words.embedding_dim) for words in (ours[name], theirs[name])]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"cannot share embeddings: generator has size {sizes[0]} for {name}, discriminator {sizes[1]}; "
                "make them equal or use share='nothing'"
            )
    return [(ours[name], theirs[name]) for name in names]


def _word_modules(model: nn.Module) -> dict[str, nn.Embedding]:
    """The modules of `Embeddings.words`, by name."""
    embeddings = Embeddings.of(model)
    modules = {
        id(parameter): module
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    return {name.rpartition(".")[0]: modules[id(embeddings.parameters[name])] for name in embeddings.words}


class Embeddings(NamedTuple):
    """The parameters of a model's embeddings."""

    parameters: dict[str, nn.Parameter]
    """By what they are (`word.weight`, `norm.bias`); in a plain module, of each nn.Embedding by its name."""
    words: list[str]
    """Those that can be the word table."""

    @property
    def word_tables(self) -> list[nn.Parameter]:
        """Without what is only a difference to the generator's (gdes)."""
        return [self.parameters[name] for name in self.words if not name.endswith(".delta")]

    @classmethod
    def of(cls, model: nn.Module) -> "Embeddings":
        if parts := _known_parts(model):
            return cls(parts, [name for name in parts if name in WORDS])
        words = model.get_input_embeddings() if is_transformers(model) else None
        tables = [(name, each) for name, each in _body(model).named_modules() if isinstance(each, nn.Embedding)]
        parameters = {
            f"{'word' if table is words else name}.{part}": weight
            for name, table in tables
            for part, weight in table.named_parameters()
        }
        if is_transformers(model):
            return cls(parameters, [name for name in parameters if name in WORDS])
        # In a plain module, the word table has a row for each token.
        num_rows = {name: len(weight) for name, weight in parameters.items()}
        vocab_size = vocab_size_of(model, _body(model))
        wanted = vocab_size if vocab_size in num_rows.values() else max(num_rows.values(), default=0)
        return cls(parameters, sorted(name for name, rows in num_rows.items() if rows == wanted))


def _known_parts(model: nn.Module) -> dict[str, nn.Parameter]:
    """For a model whose `embeddings` hold a word table under a name that we know; else empty."""
    embeddings = getattr(_body(model), "embeddings", None)
    parts = {}
    for name, child in embeddings.named_children() if isinstance(embeddings, nn.Module) else ():
        part, offset = EMBEDDING_PARTS.get(name), getattr(child, "padding_idx", None)
        if part == "position" and offset is not None:  # RoBERTa's row 5 is another position than BERT's
            part = f"position_from_{offset + 1}"
        if part is not None:
            parts[part] = child
    if not isinstance(words := parts.get("word"), nn.Embedding):
        return {}
    return {
        f"{part}.{name}": parameter
        for part, child in parts.items()
        for name, parameter in child.named_parameters()
        if parameter.size(-1) == words.embedding_dim  # DeBERTa's LayerNorm is after the projection: not shared
    }


# The encoder


def encoder_replacements(generator: nn.Module, discriminator: nn.Module, only_layers: bool = False) -> Replacements:
    """Match all parameters of the two bodies by name. `only_layers`: of the generator's those up to its last layer."""
    what = "layers" if only_layers else "the encoder"
    # Weights of equal shapes may be used differently: with another number of heads, or other position numbers.
    mine, others = _used_settings(generator), _used_settings(discriminator)
    for name in [*mine, *others]:
        value, other_value = mine.get(name), others.get(name)
        if only_layers and isinstance(value, list) and isinstance(other_value, list):  # one entry for each layer
            other_value = other_value[: len(value)]
        if value != other_value:
            raise UserError(
                f"cannot share {what}: generator has {name} {value}, discriminator {other_value}; "
                "make them equal or use share='embeddings'"
            )
    ours, theirs = _body_parameters(generator, discriminator), _body_parameters(discriminator, generator)
    if only_layers:
        ours = _up_to_last_layer(ours)
    for name in [*ours, *([] if only_layers else theirs)]:
        size, other = (tuple(body[name].shape) if name in body else None for body in (ours, theirs))
        if size != other:
            raise UserError(
                f"cannot share {what}: generator has size {size} for {name}, discriminator {other}; "
                "give both the same sizes or use share='embeddings'"
            )
    if not ours:
        raise UserError(f"cannot share {what}: no parts with the same name; use share='nothing'")
    return [(parameter, theirs[name]) for name, parameter in ours.items()]


def _up_to_last_layer(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those in the order of the computation; layers are numbered."""
    names = list(parameters)
    last = max((place for place, name in enumerate(names) if re.search(r"(^|\.)\d+\.", name)), default=-1)
    return {name: parameters[name] for name in names[: last + 1]}


USED_SETTINGS = (
    *("model_type", "num_attention_heads", "n_heads", "num_key_value_heads"),
    *("hidden_act", "hidden_activation", "activation", "layer_norm_eps", "norm_eps"),
    *("pad_token_id", "position_embedding_type", "relative_attention", "pos_att_type"),
    *("position_buckets", "max_relative_positions", "rope_parameters"),
    *("layer_types", "local_attention", "sliding_window"),
)
"""Settings of transformers' models that change what equal weights compute."""


def _used_settings(model: nn.Module) -> dict[str, Any]:
    if is_transformers(model):
        return {name: getattr(model.config, name) for name in USED_SETTINGS if hasattr(model.config, name)}
    if isinstance(model, Network):
        return {
            name: getattr(model.config, name)
            for name in ("body", *SHARED_ENCODER_SIZES, "pad_token_id", "sep_token_id")
        }
    parts = _body(model).named_modules()
    heads = {f"{where}.{name}": getattr(part, name, None) for where, part in parts for name in ("heads", "num_heads")}
    return {name: value for name, value in heads.items() if isinstance(value, int)}


def _body_parameters(model: nn.Module, other: nn.Module) -> dict[str, nn.Parameter]:
    """Without the heads; those of a plain module are the children that the other has not, or else the last."""
    body = _body(model)
    if is_transformers(model) or isinstance(model, Network):
        heads = {"pooler"}
    else:
        names, others = (
            [name for name, child in module.named_children() if any(True for _ in child.parameters())]
            for module in (body, _body(other))
        )
        heads = set(names) - set(others) or (set(names[-1:]) if names == others else set())
    named = dict(body.named_parameters(remove_duplicate=False))
    # With gdes the word table is the generator's already.
    for name in [*gdes_tables(body), *gdes_tables(_body(other))]:
        named = {each: parameter for each, parameter in named.items() if each.rpartition(".")[0] != name}
    return {name: parameter for name, parameter in named.items() if name.split(".")[0] not in heads}


# Helpers


def _body(model: nn.Module) -> nn.Module:
    """A transformers model without its head; our network's body; of a Sequential that adds a head to a network, the network."""
    if is_transformers(model):
        return model.base_model
    if isinstance(model, Network):
        return model.body
    first = next(model.children(), None) if type(model) is nn.Sequential else None
    return model if first is None or isinstance(first, nn.Embedding) else _body(first)


def _family(model: nn.Module) -> Any:
    """Within a family, parts of different sizes are an error; across families they are just not shared."""
    if is_transformers(model):
        return model.config.model_type
    return model.config.body if isinstance(model, Network) else None

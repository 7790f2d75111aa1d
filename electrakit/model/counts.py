"""Computes parameters, FLOPs and memory of a run from its settings, in closed form and without torch.

Letters: T tokens of a row, K chosen positions, V vocabulary, E embedding size, H hidden size, F feed-forward size.
"""

from dataclasses import dataclass
from math import ceil, log, prod
from typing import Literal

from electrakit.config.network import NetworkConfig
from electrakit.config.objective import max_chosen
from electrakit.config.pretrain import PretrainConfig

HeadKind = Literal["words", "replaced"]
"""What a network predicts for a token: which word it is, or whether it was replaced."""


def head_kinds(config: PretrainConfig) -> dict[str, HeadKind]:
    """The head of each network of the run."""
    of_discriminator: HeadKind = "replaced" if config.objective.kind in ("electra", "electric") else "words"
    return {name: of_discriminator if name == "discriminator" else "words" for name in config.networks}


def has_two_towers(config: PretrainConfig, name: str) -> bool:
    """Whether a network is `model.two_tower`'s, which computes its body twice and its head at every token."""
    return config.objective.kind == "electric" and name == "generator"


# Parameters


@dataclass(frozen=True)
class Parameters:
    """Every parameter once: tied output tables and what the networks share are not counted again."""

    encoder: int
    """The discriminator without its head: what fine-tuning starts from, and what published sizes count."""
    head: int
    """The discriminator's head, which is dropped after pretraining."""
    generator: int
    """Of the generator, what it does not share."""
    objective: int
    """The copy gate of all_tokens_mlm, or the head that corrects."""

    @property
    def total(self) -> int:
        return self.discriminator + self.generator + self.objective

    @property
    def discriminator(self) -> int:
        return self.encoder + self.head


def count_parameters(config: PretrainConfig) -> Parameters:
    shapes = {name: shapes_in_run(config, name) for name in config.networks}
    sizes = {name: {part: num_elements(shape) for part, shape in parts.items()} for name, parts in shapes.items()}
    shared = shared_parts(config)
    return Parameters(
        encoder=sum(size for part, size in sizes["discriminator"].items() if part not in HEAD_PARTS),
        head=sum(sizes["discriminator"][part] for part in HEAD_PARTS),
        generator=sum(size for part, size in sizes.get("generator", {}).items() if part not in shared),
        objective=num_objective_parameters(config),
    )


def num_objective_parameters(config: PretrainConfig) -> int:
    if config.objective.correct_weight:
        shapes = parameter_shapes(config.discriminator, "words")
        return sum(num_elements(shapes[part]) for part in HEAD_PARTS)
    return config.discriminator.hidden_size + 1 if config.objective.kind == "all_tokens_mlm" else 0


def shared_parts(config: PretrainConfig) -> set[str]:
    """The parts of the generator that are the discriminator's, too: those that `share` names and that have the same shapes."""
    if config.generator is None or config.share in ("nothing", "gdes"):
        return set()
    ours, theirs = (parameter_shapes(network, "words") for network in (config.generator, config.discriminator))
    after_layers = {*HEAD_PARTS, "decoder_position", *(("last_norm",) if config.share == "layers" else ())}
    can_share = EMBEDDINGS if config.share == "embeddings" else {*ours} - after_layers
    shared = {part for part in can_share if part in ours and part in theirs}
    # The generator's layers may be the first ones of more.
    return {part for part in shared if ours[part] == theirs[part][: len(ours[part])]}


EMBEDDINGS = ("word", "position", "segment", "embedding_norm", "embedding_bias")
HEAD_PARTS = ("head", "output")

Shapes = tuple[tuple[int, ...], ...]


def num_elements(shapes: Shapes, min_dims: int = 1) -> int:
    """Of all, or with `min_dims=2` of the matrices only."""
    return sum(prod(shape) for shape in shapes if len(shape) >= min_dims)


def shapes_in_run(config: PretrainConfig, name: str) -> dict[str, Shapes]:
    """`parameter_shapes` of a run's network. Two towers have all but the embeddings and the output bias twice."""
    parts = parameter_shapes(config.networks[name], head_kinds(config)[name])
    if not has_two_towers(config, name):
        return parts
    (num_in, num_out), *rest = parts["head"]
    twice = {part: shapes * 2 for part, shapes in parts.items() if part not in (*EMBEDDINGS, *HEAD_PARTS)}
    return parts | twice | {"head": ((2 * num_in, num_out), *rest)}


def parameter_shapes(network: NetworkConfig, head: HeadKind) -> dict[str, Shapes]:
    """The shapes of a network's parameters, by part. A test compares them with the networks."""
    vocab, embedding, hidden = network.vocab_size, network.embedding_size, network.hidden_size
    if network.body == "modern":
        parts: dict[str, Shapes] = {
            "word": ((vocab, hidden),),
            "embedding_norm": ((hidden,),),
            "layers": layer_shapes(network) * network.num_layers,
            "norms": ((hidden,),) * (2 * network.num_layers - 1),  # two of each layer, one of the first
            "last_norm": ((hidden,),),
            "head": ((hidden, hidden), (hidden,)),
        }
    elif network.body == "deberta":
        width = network.convolution
        parts = {
            "word": ((vocab, hidden),),
            "embedding_norm": ((hidden,),),
            "embedding_bias": ((hidden,),),
            "distance": ((2 * network.position_buckets, hidden), (hidden,), (hidden,)),
            "convolution": () if width is None else ((hidden, hidden, width), *((hidden,),) * 3),
            "layers": layer_shapes(network) * network.num_layers,
            "decoder_position": ((network.max_length, hidden),) if network.enhanced_mask_decoder else (),
            "head": ((hidden, hidden), *((hidden,),) * 3) if head == "words" else (),
        }
    else:
        parts = {
            "word": ((vocab, embedding),),
            "position": ((network.max_length, embedding),),
            "segment": ((2, embedding),),
            "embedding_norm": ((embedding,),),
            "embedding_bias": ((embedding,),),
            "projection": ((embedding, hidden), (hidden,)) if has_projection(network) else (),
            "layers": layer_shapes(network) * (1 if network.body == "albert" else network.num_layers),
            "head": ((hidden, embedding), *((embedding,),) * 3) if head == "words" else ((hidden, hidden), (hidden,)),
        }
    if head == "words":
        return parts | {"output": ((vocab,),)}  # the table is the word table
    if network.body in ("bert", "albert"):  # two labels, no hidden layer
        return parts | {"head": (), "output": ((hidden, 2), (2,))}
    return parts | {"output": ((hidden, 1), (1,))}


def has_projection(network: NetworkConfig) -> bool:
    """From the embeddings to the hidden size; ALBERT always has one."""
    return network.body == "albert" or network.embedding_size != network.hidden_size


def layer_shapes(network: NetworkConfig) -> Shapes:
    """Matrices first. The norms of the modern body are counted apart: its first layer has one less."""
    hidden, ffn = network.hidden_size, network.ffn_size
    if network.body == "modern":
        return ((hidden, 3 * hidden), (hidden, hidden), (hidden, 2 * ffn), (ffn, hidden))
    matrices = ((hidden, 3 * hidden), (hidden, hidden), (hidden, ffn), (ffn, hidden))
    return (*matrices, *((width,) for _, width in matrices), *((hidden,),) * 4)


# FLOPs, as the paper counts them (the official flops_computation.py)

# Operations per element.
DROPOUT, NORM, GELU, SOFTMAX, ROPE = 4, 5, 8, 5, 3


def flops_per_token(config: PretrainConfig) -> dict[str, float]:
    """Forward and backward, mean over the tokens of a row, for each network.

    As in the paper: a multiply-add is two operations, an exponential one; the backward pass costs as much as the forward pass (really
    about twice as much); an embedding lookup costs a product with the whole table (really nothing).
    """
    flops = {}
    for name, network in config.networks.items():
        encoder = embedding_flops(network, config.length) + body_flops(network, config.length)
        head = num_predicted(config, name) / config.length * head_flops(network, head_kinds(config)[name])
        if has_two_towers(config, name):
            encoder += body_flops(network, config.length)
            head += 2 * network.hidden_size * network.embedding_size
        flops[name] = 2 * (encoder + head)
    if config.objective.correct_weight:
        correction = num_chosen(config) / config.length * head_flops(config.discriminator, "words")
        flops["discriminator"] += 2 * correction
    return flops


def flops_per_step(config: PretrainConfig) -> float:
    """Of two stages the mean: the second has no backward pass of the generator, the first no discriminator."""
    flops = flops_per_token(config)
    if config.objective.generator_steps is not None:
        first = min(1.0, config.objective.generator_steps / config.steps)
        flops = {
            "generator": flops["generator"] * (1 + first) / 2,
            "discriminator": flops["discriminator"] * (1 - first),
        }
    return sum(flops.values()) * config.batch_size * config.length


def useful_flops(config: PretrainConfig) -> float:
    """FLOPs of the matrix products for one row, forward and backward (twice as many): 8.98 G for ELECTRA-small.

    For the utilisation of the hardware. `flops_per_token`, as the paper counts, is two thirds more, which no device computes.
    """
    products = 0.0
    for name, network in config.networks.items():
        head = head_kinds(config)[name]
        size = {part: num_elements(shapes, min_dims=2) for part, shapes in shapes_in_run(config, name).items()}
        repeats = layers_computed(network) / (1 if network.body == "albert" else network.num_layers)
        num_towers = 2 if has_two_towers(config, name) else 1
        num_seen = config.length + num_places(network, config.length)
        attention = 2 * layers_computed(network) * network.hidden_size * num_seen * num_towers
        beside = size.get("projection", 0) + size.get("convolution", 0)
        products += config.length * (beside + repeats * size["layers"] + attention)
        output = network.embedding_size * network.vocab_size if head == "words" else size["output"]
        products += num_predicted(config, name) * (size["head"] + output)
    if config.objective.correct_weight:
        one = config.discriminator
        head_size = num_elements(parameter_shapes(one, "words")["head"], min_dims=2)
        products += num_chosen(config) * (head_size + one.embedding_size * one.vocab_size)
    return 3 * 2 * products


def num_chosen(config: PretrainConfig) -> int:
    """K of this run: chosen positions per row."""
    return max_chosen(config.length, config.objective.mask_prob)


def has_head_everywhere(config: PretrainConfig, name: str) -> bool:
    """Whether a network's head is computed at every token, not only at the chosen ones."""
    everywhere = ("electra", "all_tokens_mlm", "electric")
    return has_two_towers(config, name) or (name == "discriminator" and config.objective.kind in everywhere)


def num_predicted(config: PretrainConfig, name: str) -> int:
    """Positions of a row at which a network's head is computed."""
    return config.length if has_head_everywhere(config, name) else num_chosen(config)


def embedding_flops(network: NetworkConfig, length: int) -> float:
    """From the id to the first layer's input, for one token."""
    size = network.embedding_size
    lookups = network.vocab_size + (length + 2 if network.body not in ("modern", "deberta") else 0)
    projection = (2 * size + 1) * network.hidden_size if has_projection(network) else 0
    return 2 * size * lookups + (2 + NORM + DROPOUT) * size + projection


def body_flops(network: NetworkConfig, length: int) -> float:
    """All layers, for one token of a row of `length`."""
    hidden, ffn = network.hidden_size, network.ffn_size
    is_modern = network.body == "modern"
    products = 2 * (4 * hidden * hidden + (3 if is_modern else 2) * hidden * ffn)
    attention = 4 * hidden * length + (1 + SOFTMAX + DROPOUT) * length * network.num_heads
    biases = 0 if is_modern else 5 * hidden + ffn
    residuals = 2 * (1 + DROPOUT + NORM) * hidden
    extra = 2 * ROPE * hidden + ffn if is_modern else 0  # RoPE and the gate
    if network.body == "deberta":  # two more scores: products with the distances, and the sum
        extra += 4 * hidden * num_places(network, length) + 2 * length * network.num_heads
    convolution = 0 if network.convolution is None else (2 * hidden * network.convolution + GELU + NORM + 2) * hidden
    return layers_computed(network) * (products + attention + biases + residuals + GELU * ffn + extra) + convolution


def layers_computed(network: NetworkConfig) -> int:
    """The enhanced mask decoder computes the last layer twice."""
    return network.num_layers + network.enhanced_mask_decoder


def num_places(network: NetworkConfig, length: int) -> int:
    """Rows of the table of distances that a row of tokens needs; each is multiplied with every query and every key.

    Their projection, once in a layer for all rows of a micro-batch, is not counted: it is below 1 % with 20 rows of 512 tokens.
    """
    if network.body != "deberta":
        return 0
    near, farthest = network.position_buckets // 2, length - 1
    if farthest > near:
        share = log(farthest / near) / log((network.max_length - 1) / near)
        farthest = min(near + ceil(share * (near - 1)), network.position_buckets)
    return min(2 * farthest + 1, 2 * network.position_buckets)


def head_flops(network: NetworkConfig, head: HeadKind) -> float:
    """The head at one position."""
    size, hidden, vocab = network.embedding_size, network.hidden_size, network.vocab_size
    if head == "words":
        return (2 * hidden + 1 + GELU + NORM) * size + (2 * size + SOFTMAX + 2) * vocab
    return 4 * hidden if network.body in ("bert", "albert", "deberta") else (2 * hidden + 1 + GELU + 2) * hidden


# Memory of training


@dataclass(frozen=True)
class Memory:
    """Bytes on one device that holds everything, without the overhead of the allocator and the libraries."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations


def estimate_memory(config: PretrainConfig) -> Memory:
    """Weights, gradients and optimizer state in fp32, and the activations of one micro-batch.

    Attention is fused: nothing of size T x T is kept, but in the deberta body (our CPU kernels keep nothing there either). With bf16,
    activations take half, and there is a second copy of the weights.
    """
    num_parameters = count_parameters(config).total
    rows = min(config.micro_batch or config.batch_size, config.batch_size)
    kept = sum(kept_activations(config, name) * rows + kept_tables(config, name) for name in config.networks)
    # Word logits at the chosen positions, their softmax and its gradient. Those of all tokens are computed in blocks, and not kept.
    heads = [network for name, network in config.networks.items() if not has_head_everywhere(config, name)]
    heads += [config.discriminator] if config.objective.correct_weight else []
    heads += [network for name, network in config.networks.items() if has_two_towers(config, name)]  # to sample
    logits = sum(3.0 * num_chosen(config) * network.vocab_size for network in heads) * rows
    is_half = config.precision == "bf16"
    return Memory(
        weights=num_parameters * (6 if is_half else 4),
        gradients=num_parameters * 4,
        optimizer=8 * num_parameters - (4 * num_muon_parameters(config) if config.optim.name == "muon" else 0),
        activations=kept * (2 if is_half else 4) + logits * 4,
    )


def num_muon_parameters(config: PretrainConfig) -> int:
    """The layers' matrices: Muon keeps one moment of these, Adam two of everything else."""
    shared = shared_parts(config)
    return sum(
        num_elements(shapes_in_run(config, name)["layers"], min_dims=2)
        for name in config.networks
        if name == "discriminator" or "layers" not in shared
    )


# The activations of a token that a layer keeps for the backward pass, in multiples of H and F.
KEPT = {
    "classic": (8, 2),  # qkv, attention, two norms' inputs and outputs; before and after the GELU
    "bert": (8, 2),
    "albert": (8, 5),  # its GELU is not fused
    "modern": (10, 4),  # also qkv after RoPE; both halves, the GELU and the product
    "deberta": (9, 2),  # as classic, and scaled queries; attention itself is below
}


def kept_activations(config: PretrainConfig, name: str) -> float:
    """Elements that a row keeps in one network's body and head, without the word logits."""
    network = config.networks[name]
    hidden, ffn, embedding = network.hidden_size, network.ffn_size, network.embedding_size
    times_hidden, times_ffn = KEPT[network.body]
    layer = times_hidden * hidden + times_ffn * ffn + kept_weights(network) * config.length
    masks = (2 * hidden if network.body != "modern" else ffn + hidden) / 4 * (network.dropout > 0)  # a byte each
    # With recompute: every layer's input, and all activations of the one layer that is recomputed.
    num_layers = layers_computed(network)
    layers = num_layers * hidden + layer + masks if config.recompute else num_layers * (layer + masks)
    per_token = layers + 2 * embedding + hidden
    if has_two_towers(config, name):
        return (2 * per_token + 2 * hidden) * config.length
    has_words = head_kinds(config)[name] == "words"
    positions, width = (num_chosen(config), embedding) if has_words else (config.length, hidden)
    return per_token * config.length + positions * (hidden + 3 * width)


def kept_weights(network: NetworkConfig) -> float:
    """Attention weights of a token for each key, where they are kept: before and after dropout, and its mask."""
    if network.body != "deberta":
        return 0.0
    return network.num_heads * (2.25 if network.attention_dropout else 1.0)


def kept_tables(config: PretrainConfig, name: str) -> float:
    """Elements that a micro-batch keeps once: queries and keys of every distance, in each layer."""
    network = config.networks[name]
    if network.body != "deberta":
        return 0.0
    return (1 if config.recompute else layers_computed(network)) * 4.0 * config.length * network.hidden_size

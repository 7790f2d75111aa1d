"""Attention that looks at neighbouring words before the first step: four heads of the `modern` body begin with a fixed offset.

A network finds out that neighbours matter only after hundreds of steps, in which little else is learned. RoPE makes a head that
ignores the words a function of the distance alone, so the offset can be written into the weights: every word vector gets the same
number in its last dimension, and the columns of query and key that read it are turned against each other by the offset's angles.
Everything is an ordinary weight, which training may change and transformers can hold.
"""

from math import cos, sin, sqrt

import torch

from electrakit.model.modern import ModernBody, ModernLayer

OFFSETS = (-1, 1, -2, 2)
"""Of the first heads, in the order of the layers."""
CONSTANT = 4.0  # the last dimension of a word vector, in units of the table's rms
STRENGTH = 6.0  # attention logit of each frequency: the next best place gets e ** -5 of the weight with heads of 64
NUM_FREQUENCIES = 3  # the highest ones: lower ones hardly differ between neighbours


@torch.no_grad()
def attend_to_neighbours(body: ModernBody) -> None:
    """Set the constant dimension of the word table, and the queries and keys of the first heads."""
    config, table = body.config, body.embeddings.word.weight
    head_size = config.hidden_size // config.num_heads
    # The norm divides by the rms, to which the constant itself adds.
    normed = CONSTANT / sqrt(1 + CONSTANT**2 / config.hidden_size)
    table[:, -1] = CONSTANT * table[:, :-1].pow(2).mean().sqrt()
    weights = [layer.qkv.weight for layer in body.layers if isinstance(layer, ModernLayer)]
    columns = [weight.view(3, config.num_heads, head_size, -1)[:2, :, :, -1] for weight in weights]
    heads = [one[:, head] for one in columns for head in range(config.num_heads)]  # (2, head size) each
    for offset, (query, key) in zip(OFFSETS, heads, strict=False):
        query.zero_()
        key.zero_()
        for number in range(min(NUM_FREQUENCIES, head_size // 2)):
            angle = offset * config.rotary_base ** (-2 * number / head_size)
            length = sqrt(STRENGTH * sqrt(head_size)) / normed
            query[number], query[number + head_size // 2] = length * cos(angle), length * sin(angle)
            key[number] = length

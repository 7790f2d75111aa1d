"""Attention that looks at neighbouring words before the first step: four heads of the `modern` body begin with a fixed offset.

A network finds out that neighbours matter only after hundreds of steps, in which little else is learned. RoPE makes a head that
ignores the words a function of the distance alone, so the offset can be written into the weights. Word vectors get the same length and
the same number in their last dimension; the columns of query and key that read it are turned against each other by the offset's
angles. Everything is an ordinary weight, which training may change and transformers can hold.
"""

from math import cos, sin, sqrt

import torch

from electrakit.model.modern import ModernBody, ModernLayer

OFFSETS = (-1, 1, -2, 2)
"""Of the first heads, in the order of the layers."""
CONSTANT = 4.0  # the last dimension of a word vector, in units of the table's rms
STRENGTH = 6.0  # attention logit of each frequency
NUM_FREQUENCIES = (
    6  # the highest ones: lower ones hardly differ between neighbours, with fewer a far place has the same angles
)


@torch.no_grad()
def attend_to_neighbours(body: ModernBody) -> None:
    """Set the lengths and the last dimension of the word vectors, and the queries and keys of the first heads."""
    config, table = body.config, body.embeddings.word.weight
    head_size = config.hidden_size // config.num_heads
    words, rms = table[:, :-1], table[:, :-1].pow(2).mean().sqrt()
    # The norm divides each vector by its own length: without this, frequent words, whose counted vectors are short, win at any distance.
    words *= rms / words.pow(2).mean(1, keepdim=True).sqrt().clamp(min=1e-3 * rms)
    table[:, -1] = CONSTANT * rms
    normed = CONSTANT / sqrt(1 + CONSTANT**2 / config.hidden_size)  # the constant adds to the length, too
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

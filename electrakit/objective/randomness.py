"""Uniform random numbers from (seed, step, row number): a row is corrupted the same way on any number of processes.

A counter-based generator: Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; also
JAX's). It has no state, only adds and rotates 32-bit words, and so gives the same numbers on every device, compiled or not. The
words are held in int64 tensors and stay within 0 .. 2**32 - 1: nothing depends on how a device overflows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Words = tuple[Any, Any]
WORD = 0xFFFFFFFF
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)  # two groups of four rounds, alternating
PARITY = 0x1BD11BDA


class Draws(NamedTuple):
    """All randomness in the corruption of B rows: uniform numbers in [0, 1), float32."""

    priority: Tensor
    """(B, T): the positions with the highest numbers are chosen."""
    mask: Tensor
    """(B, K): whether a chosen position gets [MASK], a random token, or keeps its own."""
    token: Tensor
    """(B, K): which random token."""
    sample: Tensor
    """(B, K): which token is sampled from the generator's distribution."""


def row_keys(seed: int, step: int, rows: Tensor | Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """A key for each row: int64 (B, 2). `rows` are row numbers within the global batch, or since the start of training."""
    numbers = torch.as_tensor(rows, dtype=torch.int64, device="cpu")
    step_key = threefry(_words(int(seed)), _words(int(step)))
    return torch.stack(threefry(step_key, _words(numbers)), dim=-1).to(device)


def fresh_keys(num_rows: int, device: torch.device) -> Tensor:
    """Keys from torch's generator: int64 (B, 2). torch.manual_seed makes them reproducible."""
    return torch.randint(WORD + 1, (num_rows, 2), device=device)


def draw(keys: Tensor, num_tokens: int, num_chosen: int) -> Draws:
    """The numbers of each row, a function of its key (B, 2) alone. Number i of a field does not depend on T or K."""
    sizes = (num_tokens, num_chosen, num_chosen)
    index = torch.cat([torch.arange(size, device=keys.device) for size in sizes])
    kind = torch.cat([torch.full((size,), number, device=keys.device) for number, size in enumerate(sizes)])
    first, second = threefry((keys[:, :1], keys[:, 1:]), (index, kind))  # (B, T + 2 K) each
    priority, mask, sample = to_unit_interval(first).split(sizes, dim=-1)
    token = to_unit_interval(second)[:, num_tokens : num_tokens + num_chosen]
    return Draws(priority, mask, token, sample)


def to_unit_interval(words: Tensor) -> Tensor:
    """32-bit words as float32 in [0, 1): 24 bits, so that 1 is never reached by rounding."""
    return (words >> 8).float() * 2.0**-24


def threefry(key: Words, counter: Words) -> Words:
    """Two random words from two words of key and two of counter, which are integers or tensors that broadcast."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    left, right = (counter[0] + keys[0]) & WORD, (counter[1] + keys[1]) & WORD
    for group in range(5):
        for rotation in ROTATIONS[group % 2 * 4 :][:4]:
            left = (left + right) & WORD
            right = left ^ ((right << rotation | right >> (32 - rotation)) & WORD)
        left = (left + keys[(group + 1) % 3]) & WORD
        right = (right + keys[(group + 2) % 3] + group + 1) & WORD
    return left, right


def _words(number: Any) -> Words:
    """The low and the high word of an integer, or of a tensor of them."""
    return number & WORD, number >> 32 & WORD

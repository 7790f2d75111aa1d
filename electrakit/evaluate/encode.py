"""Sentences in, batches of ids out: rows of similar length together, so that next to nothing is padding."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from electrakit.errors import UserError
from electrakit.evaluate.read import Examples

ROWS_AT_ONCE = 10_000
BATCHES_IN_A_BUCKET = 50
EVALUATION_TOKENS = {"cpu": 4096, "cuda": 32_768}  # in a batch without gradients


@dataclass(frozen=True)
class Encoded:
    """Rows of ids, one after the other in one array, and the labels."""

    ids: np.ndarray
    segments: np.ndarray | None
    starts: np.ndarray
    """Where each row begins, and the end of the last."""
    labels: np.ndarray | None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """The labels of a batch."""
        assert self.labels is not None
        return self.labels[rows]


def encode(examples: Examples, tokenizer: Any, length: int, both_orders: bool = False) -> Encoded:
    """Tokenize; what is longer than `length` loses tokens at the end of its longer sentence."""
    first, second, labels = examples.first, examples.second, examples.labels
    if both_orders and second is not None:
        first, second = first + second, second + first
        labels = labels + labels if labels is not None else None
    ids, segments, lengths = [], [], []
    for start in range(0, len(first), ROWS_AT_ONCE):
        texts = [each[start : start + ROWS_AT_ONCE] for each in (first, second) if each is not None]
        rows = tokenizer(*texts, truncation="longest_first", max_length=length, return_attention_mask=False)
        lengths += [len(row) for row in rows["input_ids"]]
        ids.append(np.concatenate([np.asarray(row, np.int32) for row in rows["input_ids"]]))
        if "token_type_ids" in rows:
            segments.append(np.concatenate([np.asarray(row, np.uint8) for row in rows["token_type_ids"]]))
    return Encoded(
        ids=np.concatenate(ids),
        segments=np.concatenate(segments) if segments else None,
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        labels=np.asarray(labels, np.float32) if labels is not None else None,
    )


def num_positions(config: Any, tokenizer: Any) -> int:
    """How long a row may be."""
    positions = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= 2  # they begin to count after the padding's number
    return min(positions, tokenizer.model_max_length)


def longest(length: int, config: Any, tokenizer: Any) -> int:
    """`length`, if the model has so many positions."""
    positions = num_positions(config, tokenizer)
    if length > positions:
        raise UserError(f"--length {length}: the model has {positions} positions; use --length {positions} or less")
    return length


def training_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The rows of each batch of an epoch: a function of seed and epoch, and of nothing else.

    Rows are shuffled, then sorted by length within buckets of fifty batches, then the batches are shuffled.
    """
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    order = random.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), batch_size * BATCHES_IN_A_BUCKET):
        bucket = order[start : start + batch_size * BATCHES_IN_A_BUCKET]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches += [bucket[place : place + batch_size] for place in range(0, len(bucket), batch_size)]
    return [batches[place] for place in random.permutation(len(batches))]


def evaluation_batches(lengths: np.ndarray, max_tokens: int = EVALUATION_TOKENS["cpu"]) -> list[np.ndarray]:
    """All rows, from long to short, as many at a time as fit: the first batch shows whether memory is enough."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        num_rows = max(1, max_tokens // int(lengths[order[start]]))
        batches.append(order[start : start + num_rows])
        start += num_rows
    return batches


def collate(encoded: Encoded, rows: np.ndarray, pad_id: int, device: torch.device) -> dict[str, Tensor]:
    """The rows as tensors (B, T), T the longest of them. Without padding there is no attention mask, which is faster."""
    lengths = encoded.starts[rows + 1] - encoded.starts[rows]
    places = np.arange(lengths.max())[None]
    is_real = places < lengths[:, None]
    sources = np.minimum(encoded.starts[rows][:, None] + places, len(encoded.ids) - 1)
    inputs = {"input_ids": np.where(is_real, encoded.ids[sources], pad_id).astype(np.int64)}
    if encoded.segments is not None:
        inputs["token_type_ids"] = np.where(is_real, encoded.segments[sources], 0).astype(np.int64)
    if not is_real.all():
        inputs["attention_mask"] = is_real.astype(np.int64)
    return {name: torch.from_numpy(value).to(device, non_blocking=True) for name, value in inputs.items()}

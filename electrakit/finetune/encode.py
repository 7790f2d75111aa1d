"""Tokenizes sentences, and makes batches of rows of similar length, so that hardly any of a batch is padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from electrakit.common.errors import UserError
from electrakit.finetune.read_glue import Examples

ROWS_AT_ONCE = 10_000
BATCHES_IN_A_BUCKET = 50
EVALUATION_TOKENS = {"cpu": 4096, "cuda": 32_768}  # in a batch without gradients


@dataclass(frozen=True, kw_only=True)
class EncodedRows:
    """The token ids of all rows in one array, and the labels."""

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

    def padded(self, values: np.ndarray, rows: np.ndarray, filling: int) -> np.ndarray:
        """The values (all tokens) of some rows as (B, T), T the longest of them."""
        is_real = self.is_real(rows)
        sources = np.minimum(self.starts[rows][:, None] + np.arange(is_real.shape[1]), len(values) - 1)
        return np.where(is_real, values[sources], filling).astype(np.int64)

    def is_real(self, rows: np.ndarray) -> np.ndarray:
        """(B, T): where a row has a token, not padding."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        return np.arange(lengths.max()) < lengths[:, None]

    def more_inputs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """What the head of a task needs besides the tokens."""
        return {}

    def targets(self, rows: np.ndarray) -> np.ndarray:
        """The labels of a batch."""
        assert self.labels is not None
        return self.labels[rows]


def encode(examples: Examples, tokenizer: Any, length: int, both_orders: bool = False) -> EncodedRows:
    """Tokenize; a row longer than `length` loses tokens at the end of its longer sentence."""
    first, second, labels = examples.first, examples.second, examples.labels
    if both_orders and second is not None:
        first, second = first + second, second + first
        labels = labels + labels if labels is not None else None
    texts = [sentences for sentences in (first, second) if sentences is not None]
    columns = tokenize(tokenizer, texts, truncation="longest_first", max_length=length)
    ids, segments = columns["input_ids"], columns.get("token_type_ids")
    return EncodedRows(
        ids=np.concatenate(ids),
        segments=np.concatenate(segments).astype(np.uint8) if segments else None,
        starts=starts_of(ids),
        labels=np.asarray(labels, np.float32) if labels is not None else None,
    )


def tokenize(tokenizer: Any, texts: Sequence[list[str]], **options: Any) -> dict[str, list[np.ndarray]]:
    """What the tokenizer gives for lists of texts, or of pairs of texts: by its name, an array for each row."""
    columns: dict[str, list[np.ndarray]] = {"input_ids": []}
    for start in range(0, len(texts[0]), ROWS_AT_ONCE):
        some = [each[start : start + ROWS_AT_ONCE] for each in texts]
        for name, rows in tokenizer(*some, return_attention_mask=False, **options).items():
            columns.setdefault(name, []).extend(np.asarray(row, np.int32) for row in rows)
    return columns


def starts_of(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Where each row begins if they stand in one array, and the end of the last."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows])])


def check_ids(rows: EncodedRows, config: Any, place: str) -> None:
    """Refuse tokens that the model has no embedding for: they are those of another model's tokenizer."""
    num_embeddings = getattr(config, "vocab_size", None)
    highest = int(rows.ids.max(initial=0))
    if num_embeddings is not None and highest >= num_embeddings:
        raise UserError(
            f"the tokenizer of {place} gives the id {highest:,}, but the model has {num_embeddings:,} embeddings: it is "
            "the tokenizer of another model; copy the right one into the folder"
        )


def num_positions(config: Any, tokenizer: Any) -> int:
    """The longest row that a model can take."""
    positions = getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= 2  # their positions begin after the id of padding
    return min(positions, tokenizer.model_max_length)


def checked_length(length: int, config: Any, tokenizer: Any) -> int:
    """`length`, if the model has as many positions."""
    positions = num_positions(config, tokenizer)
    if length > positions:
        raise UserError(f"--length {length}: the model has {positions} positions; use --length {positions} or less")
    return length


def training_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The rows of each batch of an epoch: a function of seed and epoch alone.

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
    """All rows, from long to short, as many in a batch as fit: if the first batch fits into memory, all do."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        num_rows = max(1, max_tokens // int(lengths[order[start]]))
        batches.append(order[start : start + num_rows])
        start += num_rows
    return batches


def collate(encoded: EncodedRows, rows: np.ndarray, pad_id: int, device: torch.device) -> dict[str, Tensor]:
    """The rows as tensors (B, T), T the longest of them. Without padding there is no attention mask, which is faster."""
    inputs = {"input_ids": encoded.padded(encoded.ids, rows, pad_id)}
    if encoded.segments is not None:
        inputs["token_type_ids"] = encoded.padded(encoded.segments, rows, 0)
    inputs |= encoded.more_inputs(rows)
    is_real = encoded.is_real(rows)
    if not is_real.all():
        inputs["attention_mask"] = is_real.astype(np.int64)
    return {name: torch.from_numpy(value).to(device, non_blocking=True) for name, value in inputs.items()}

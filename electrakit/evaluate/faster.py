"""A classifier and its rows in, the same with less work out: nothing is computed that the scores do not depend on.

- Of the top layer only the state of [CLS] is used, unless tokens are predicted, so only that is computed: its keys and values see
  all tokens, its query and its feed-forward one.
- Of the word embeddings only the rows of words that occur are used. The others have no gradient, and without weight decay Adam does
  not move them: a table of the words that occur is trained, and put back.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.evaluate.classifier import Classifier
from electrakit.evaluate.encode import Encoded
from electrakit.evaluate.token_model import TokenModel

LIKE_BERT = (
    "bert",
    "camembert",
    "electra",
    "roberta",
    "xlm-roberta",
)  # their layers have the same parts by the same names
MAX_PAD_ID = 1000  # ids up to that of padding keep their numbers: a model may look for it


@contextmanager
def less_work(
    classifier: Classifier | TokenModel, rows: dict[str, Encoded], has_decay: bool, pad_id: int
) -> Iterator[dict[str, Encoded]]:
    """The rows to use in here. Afterwards the classifier is whole, with what it has learned."""
    with first_state_only(classifier.model) if classifier.uses_first_state_only else nullcontext():
        if has_decay or pad_id > MAX_PAD_ID:
            yield rows
        else:
            with small_table(classifier.model, rows, pad_id) as small:
                yield small


@contextmanager
def first_state_only(model: Any) -> Iterator[None]:
    """The top layer computes one state of each row, if we know how."""
    if model.config.model_type not in LIKE_BERT or getattr(model.config, "is_decoder", False):
        yield
        return
    layer = model.base_model.encoder.layer[-1]
    layer.forward = partial(first_state, layer)
    try:
        yield
    finally:
        del layer.forward  # the class's own again


def first_state(layer: Any, states: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """A layer of BERT for the first token: states (B, T, H) -> (B, 1, H)."""
    attention = layer.attention.self
    first = states[:, :1]
    shape = (len(states), -1, attention.num_attention_heads, attention.attention_head_size)
    query = attention.query(first).view(shape).transpose(1, 2)
    key = attention.key(states).view(shape).transpose(1, 2)
    value = attention.value(states).view(shape).transpose(1, 2)
    dropout = attention.dropout.p if layer.training else 0.0
    seen = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=None if mask is None else mask[..., :1, :], dropout_p=dropout
    )
    attended = layer.attention.output(seen.transpose(1, 2).flatten(2), first)
    return layer.output(layer.intermediate(attended), attended)


@contextmanager
def small_table(model: Any, rows: dict[str, Encoded], pad_id: int) -> Iterator[dict[str, Encoded]]:
    """The rows with other ids, and a table of word embeddings for these."""
    table = model.get_input_embeddings()
    used = np.unique(np.concatenate([np.arange(pad_id + 1), *(each.ids for each in rows.values())]))
    if type(table) is not nn.Embedding or len(used) > 0.8 * table.num_embeddings:
        yield rows
        return
    numbers = np.zeros(table.num_embeddings, np.int32)
    numbers[used] = np.arange(len(used))
    whole, places = table.weight, torch.from_numpy(used).to(table.weight.device)
    table.weight = nn.Parameter(whole.detach()[places])
    try:
        yield {name: replace(each, ids=numbers[each.ids]) for name, each in rows.items()}
    finally:
        with torch.no_grad():
            whole[places] = table.weight.to(whole.device)
        table.weight = whole

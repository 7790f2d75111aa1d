"""Spares work in fine-tuning that no score depends on.

- Classifiers use only the state of [CLS] of the top layer, so only that is computed: keys and values of all tokens, but one query and
  one feed-forward.
- Only the embeddings of words that occur are used. The others have no gradient, and without weight decay Adam does not move them: a
  smaller table of the words that occur is trained, and put back.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from electrakit.finetune.classifier import ModelWithHead
from electrakit.finetune.encode import EncodedRows

# The layers of these families have the same parts by the same names.
LIKE_BERT = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
MAX_PAD_ID = 1000  # ids up to that of padding stay the same, since a model may compare ids with it
MAX_SHARE_OF_WORDS = 0.8  # a table that is not much smaller spares nothing


@contextmanager
def less_work(
    classifier: ModelWithHead, rows: dict[str, EncodedRows], has_decay: bool, pad_id: int
) -> Iterator[dict[str, EncodedRows]]:
    """Yields the rows to use inside. Afterwards the classifier is complete again, with what it has learned."""
    with first_state_only(classifier.model) if classifier.uses_first_state_only else nullcontext():
        if has_decay or pad_id > MAX_PAD_ID:
            yield rows
        else:
            with small_table(classifier.model, rows, pad_id) as small:
                yield small


@contextmanager
def first_state_only(model: Any) -> Iterator[None]:
    """Inside, the top layer of a known family computes only the first state of each row."""
    if model.config.model_type not in LIKE_BERT or getattr(model.config, "is_decoder", False):
        yield
        return
    layer = model.base_model.encoder.layer[-1]
    layer.forward = partial(first_state, layer)
    try:
        yield
    finally:
        del layer.forward  # that of the class is used again


def first_state(layer: Any, states: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
    """The forward pass of a BERT layer for the first token only: states (B, T, H) -> (B, 1, H)."""
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
def small_table(model: Any, rows: dict[str, EncodedRows], pad_id: int) -> Iterator[dict[str, EncodedRows]]:
    """Inside, the table of word embeddings holds only the words of the rows; yields the rows with the new ids."""
    table = model.get_input_embeddings()
    used = np.unique(np.concatenate([np.arange(pad_id + 1), *(each.ids for each in rows.values())]))
    if type(table) is not nn.Embedding or len(used) > MAX_SHARE_OF_WORDS * table.num_embeddings:
        yield rows
        return
    new_ids = np.zeros(table.num_embeddings, np.int32)
    new_ids[used] = np.arange(len(used))
    full_weight, places = table.weight, torch.from_numpy(used).to(table.weight.device)
    table.weight = nn.Parameter(full_weight.detach()[places])
    try:
        yield {name: replace(each, ids=new_ids[each.ids]) for name, each in rows.items()}
    finally:
        with torch.no_grad():
            full_weight[places] = table.weight.to(full_weight.device)
        table.weight = full_weight

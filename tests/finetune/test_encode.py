"""Rows for fine-tuning: batches of similar length, next to no padding, the same for the same seed."""

import numpy as np
import pytest
import torch

from electrakit.common.errors import UserError
from electrakit.finetune.classifier import load_transformers_tokenizer
from electrakit.finetune.encode import checked_length, collate, encode, evaluation_batches, training_batches
from electrakit.finetune.read_glue import Examples
from tests.helpers.tiny_glue import write_tokenizer
from tests.helpers.tiny_models import tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_transformers_tokenizer(str(write_tokenizer(tmp_path_factory.mktemp("tokenizer"))))


def lengths_of(num_rows, seed=0):
    return np.random.default_rng(seed).integers(3, 128, num_rows)


@pytest.mark.parametrize("num_rows", [1, 31, 32, 5000])
def test_every_row_is_once_in_an_epoch(num_rows):
    batches = training_batches(lengths_of(num_rows), 32, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(num_rows))
    assert len(batches) == -(-num_rows // 32)


def test_batches_are_a_function_of_seed_and_epoch():
    lengths = lengths_of(3000)

    def order(seed, epoch):
        return np.concatenate(training_batches(lengths, 32, seed, epoch)).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_next_to_nothing_of_a_batch_is_padding():
    lengths = lengths_of(3000)

    def share_of_padding(batches):
        room = sum(lengths[batch].max() * len(batch) for batch in batches)
        return 1 - lengths.sum() / room

    assert share_of_padding(training_batches(lengths, 32, 1, 0)) < 0.03
    assert share_of_padding(evaluation_batches(lengths)) < 0.03
    shuffled = np.array_split(np.random.default_rng(0).permutation(3000), 94)
    assert share_of_padding(shuffled) > 0.4


def test_evaluation_sees_every_row_once_and_no_batch_is_too_large():
    lengths = lengths_of(1000)
    batches = evaluation_batches(lengths, max_tokens=500)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert all(lengths[batch].max() * len(batch) <= 500 for batch in batches)
    assert len(evaluation_batches(np.array([900]), max_tokens=500)) == 1


def test_rows_are_those_of_the_tokenizer(tokenizer):
    first, second = ["bal bel bil", "bol", 'good " .'], ["bad", "kan kal kam kel", "fine fine"]
    rows = encode(Examples(first, second, [0, 1, 0]), tokenizer, 64)
    wanted = tokenizer(first, second, padding=True, return_tensors="pt")
    inputs = collate(rows, np.arange(3), tokenizer.pad_token_id, CPU)
    for name, value in inputs.items():
        assert torch.equal(value, wanted[name]), name
    assert set(inputs) == {"input_ids", "token_type_ids", "attention_mask"}
    assert "attention_mask" not in collate(rows, np.array([1]), tokenizer.pad_token_id, CPU)
    assert rows.labels.tolist() == [0, 1, 0]


def test_the_longer_sentence_is_cut(tokenizer):
    rows = encode(Examples(["bal " * 30], ["bad bel"], None), tokenizer, 10)
    assert rows.lengths.tolist() == [10]
    assert tokenizer.decode(rows.ids) == "[CLS] bal bal bal bal bal [SEP] bad bel [SEP]"


def test_both_orders_of_a_pair(tokenizer):
    rows = encode(Examples(["bal"], ["bad"], [3.5]), tokenizer, 10, both_orders=True)
    texts = [tokenizer.decode(rows.ids[start : start + 5]) for start in (0, 5)]
    assert texts == ["[CLS] bal [SEP] bad [SEP]", "[CLS] bad [SEP] bal [SEP]"]
    assert rows.labels.tolist() == [3.5, 3.5]


def test_more_tokens_than_positions_are_refused(tokenizer):
    assert checked_length(64, tiny_config("bert"), tokenizer) == 64
    with pytest.raises(UserError, match=r"--length 128: the model has 64 positions; use --length 64 or less"):
        checked_length(128, tiny_config("bert"), tokenizer)

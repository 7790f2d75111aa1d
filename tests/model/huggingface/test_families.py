"""transformers' families: gathered heads equal full heads, and what is no masked language model is refused."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from x_transformers import Decoder, TransformerWrapper

from electrakit.common.errors import UserError
from electrakit.model.huggingface.adapt import as_generator
from electrakit.model.huggingface.families import MASKED_LM_HEADS
from electrakit.model.parts import gather
from tests.helpers.tiny_models import (
    FAMILIES,
    PAD,
    POSITIONS,
    SEP,
    VOCAB,
    padded_rows,
    reformer,
    tiny_config,
    tiny_generator,
    tiny_pretraining_electra,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:.*has two segments, but no sep_token_id")


@pytest.mark.parametrize("family", sorted(MASKED_LM_HEADS))
def test_head_at_the_positions_equals_the_full_head(family: str) -> None:
    model = tiny_generator(family)
    adapter = as_generator(model, sep_token_id=SEP)
    assert adapter.has_known_head
    logits = adapter(padded_rows(), POSITIONS)
    full = model(padded_rows(), **adapter.inputs_for(padded_rows())).logits
    assert logits.shape == (2, 3, VOCAB)
    torch.testing.assert_close(logits, gather(full, POSITIONS), atol=1e-5, rtol=0)


def test_head_at_the_positions_equals_the_full_head_of_the_new_deberta() -> None:
    model = tiny_generator("deberta-v2", legacy=False)
    adapter = as_generator(model)
    full = model(padded_rows(), attention_mask=padded_rows() != PAD).logits
    torch.testing.assert_close(adapter(padded_rows(), POSITIONS), gather(full, POSITIONS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_known_families_never_score_all_words_at_all_tokens(family: str) -> None:
    sizes = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            output = function(*args, **(kwargs or {}))
            if isinstance(output, Tensor) and output.ndim > 0:
                sizes.append((output.size(-1), output.numel()))
            return output

    adapter = as_generator(tiny_generator(family, vocab_size=501))
    with Watch():
        adapter(padded_rows(), POSITIONS)
    over_words = [numel for last, numel in sizes if last == 501]
    assert over_words and max(over_words) <= 2 * 3 * 501


def test_an_unknown_family_runs_its_full_head() -> None:
    class MyBert(transformers.BertForMaskedLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 2
            return output

    model = MyBert(tiny_config("bert")).eval()
    logits = as_generator(model, sep_token_id=None)(padded_rows(), POSITIONS)
    full = model(padded_rows(), attention_mask=padded_rows() != PAD).logits
    torch.testing.assert_close(logits, gather(full, POSITIONS), atol=1e-5, rtol=0)


def test_a_model_that_reads_from_left_to_right_is_no_generator() -> None:
    sizes = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    decoder = transformers.BertLMHeadModel(tiny_config("bert", is_decoder=True))
    for model in (transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)), decoder):
        with pytest.raises(UserError, match="cannot be a generator: it reads from left to right"):
            as_generator(model)
    with pytest.raises(UserError, match="reads from left to right"):
        as_generator(transformers.BertForMaskedLM(tiny_config("bert", is_decoder=True)))
    causal = TransformerWrapper(num_tokens=VOCAB, max_seq_len=16, attn_layers=Decoder(dim=32, depth=1, heads=2))
    for plain in (causal, reformer(32, causal=True)):
        with pytest.warns(UserWarning, match="is causal: it does not see what follows"):
            as_generator(plain)


def test_a_generator_whose_embedding_was_swapped_predicts_with_the_new_table() -> None:
    generator, discriminator = tiny_generator("electra"), tiny_pretraining_electra()
    generator.electra.embeddings = discriminator.electra.embeddings  # as the README shows for ReformerLM
    assert (
        as_generator(generator).model.generator_lm_head.weight
        is discriminator.electra.embeddings.word_embeddings.weight
    )

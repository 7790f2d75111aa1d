"""The arguments besides the ids: padding is masked, segments are passed, and a mask of unknown meaning is not."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from x_transformers import Encoder, TransformerWrapper

from electrakit.common.errors import UserError
from electrakit.model.huggingface.adapt import as_discriminator, as_generator
from electrakit.model.networks import Discriminator
from tests.helpers.tiny_models import (
    FAMILIES,
    PAD,
    POSITIONS,
    SEP,
    VOCAB,
    Wordwise,
    our_config,
    padded_rows,
    reformer,
    tiny_discriminator,
    tiny_generator,
    x_transformer,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:.*has two segments, but no sep_token_id")
MODELS = {
    **{f"{family} generator": (tiny_generator, family) for family in FAMILIES},
    **{f"{family} discriminator": (tiny_discriminator, family) for family in FAMILIES},
    "reformer generator": (lambda dim: reformer(dim, use_full_attn=True).eval(), 32),
    "reformer discriminator": (
        lambda dim: nn.Sequential(reformer(dim, use_full_attn=True, return_embeddings=True), nn.Linear(dim, 1)).eval(),
        32,
    ),
    "x-transformers generator": (lambda _: x_transformer(), None),
    "x-transformers discriminator": (lambda _: x_transformer(logits_dim=1), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_padding_is_not_attended_to_and_changes_no_logit_of_a_real_token(name: str) -> None:
    make, argument = MODELS[name]
    adapter = (as_generator if name.endswith("generator") else as_discriminator)(make(argument), sep_token_id=SEP)
    row = padded_rows()[1:]
    rest = (torch.arange(8)[None],) if name.endswith("generator") else ()
    with torch.no_grad():
        padded = adapter(row, *rest)[:, :8]
        alone = adapter(row[:, :12], *rest)[:, :8]  # 11 tokens; reformer wants a multiple of 4
        torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)
        other = row.clone()
        other[:, 10] = 42  # but a real token is attended to: the comparison can fail
        assert not torch.allclose(adapter(other, *rest)[:, :8], padded, atol=1e-5)


def test_segments_reach_the_models_that_have_them() -> None:
    ids = padded_rows()
    expected = torch.zeros_like(ids)
    expected[0, 7:], expected[1, 7:11] = 1, 1
    for family, has_segments in [
        ("bert", True),
        ("electra", True),
        ("albert", True),
        ("distilbert", False),
        ("modernbert", False),
    ]:
        inputs = as_discriminator(tiny_discriminator(family), sep_token_id=SEP).inputs_for(ids)
        assert ("token_type_ids" in inputs) == has_segments, family
        assert not has_segments or torch.equal(inputs["token_type_ids"], expected)
        zeros = as_generator(tiny_generator(family)).inputs_for(ids)
        assert not has_segments or not zeros["token_type_ids"].any()
    one_segment = as_generator(tiny_generator("roberta", type_vocab_size=1), sep_token_id=SEP)
    assert one_segment(ids, POSITIONS).isfinite().all()


def test_segments_that_stay_0_are_told() -> None:
    for model in (tiny_discriminator("bert"), Discriminator(our_config(sep_token_id=None))):
        with pytest.warns(UserWarning, match=r"has two segments, but no sep_token_id: .* pass sep_token_id"):
            as_discriminator(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_discriminator(tiny_discriminator("bert"), sep_token_id=SEP)
        as_discriminator(tiny_discriminator("distilbert"))
        as_discriminator(Discriminator(our_config(sep_token_id=None, body="modern", embedding_size=32)))


def test_a_module_that_cannot_be_told_about_padding_warns() -> None:
    with pytest.warns(UserWarning, match="Wordwise is not told what is padding"):
        as_generator(Wordwise(VOCAB))
    with pytest.warns(UserWarning, match="Sequential is not told what is padding"):
        as_generator(nn.Sequential(nn.Embedding(VOCAB, 8), nn.Sequential(nn.Linear(8, 8), Wordwise(VOCAB))))


def test_modules_that_see_each_token_alone_need_no_mask() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_discriminator(nn.Embedding(VOCAB, 1))
        as_generator(
            nn.Sequential(nn.Embedding(VOCAB, 8), nn.Sequential(nn.GELU(), nn.LayerNorm(8)), nn.Linear(8, VOCAB))
        )


class Masked(Wordwise):
    """Notes the mask that it is given."""

    given: Tensor | None = None

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        self.given = mask
        return super().forward(ids)


def test_a_mask_of_unknown_meaning_is_not_passed_and_told() -> None:
    model = Masked(1)
    with pytest.warns(
        UserWarning, match=r"Masked is not told .* whether its 'mask' is true for real tokens .* mask_argument='mask'"
    ):
        as_discriminator(model)(padded_rows())
    assert model.given is None


@pytest.mark.parametrize("masks_padding", [False, True])
@pytest.mark.parametrize("adapt", [as_generator, as_discriminator])
def test_a_mask_can_be_named_with_its_meaning(adapt: Any, masks_padding: bool) -> None:
    model = Masked(VOCAB if adapt is as_generator else 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter = adapt(model, mask_argument="mask", masks_padding=masks_padding)
    adapter(padded_rows(), *((POSITIONS,) if adapt is as_generator else ()))
    assert model.given is not None and model.given.dtype == torch.bool
    assert torch.equal(model.given, (padded_rows() == PAD) == masks_padding)
    with pytest.raises(UserError, match="Masked has no argument 'attn'; it has ids, mask"):
        adapt(model, mask_argument="attn")


def test_masks_whose_name_says_their_meaning_are_passed() -> None:
    class Torch(Wordwise):
        def forward(self, ids: Tensor, src_key_padding_mask: Tensor) -> Tensor:
            assert torch.equal(src_key_padding_mask, ids == PAD)
            return super().forward(ids)

    class Transformers(Wordwise):
        def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
            assert torch.equal(attention_mask, ids != PAD)
            return super().forward(ids)

    for model in (Torch(1), Transformers(1)):
        assert as_discriminator(model)(padded_rows()).shape == (2, 16)


def test_the_masks_of_known_packages_are_known_in_subclasses_too() -> None:
    class Mine(TransformerWrapper):
        pass

    mine = Mine(num_tokens=VOCAB, max_seq_len=16, attn_layers=Encoder(dim=32, depth=1, heads=2))
    assert as_generator(mine).inputs_for.mask_name == "mask" and not as_generator(mine).inputs_for.masks_padding

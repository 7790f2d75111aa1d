"""Adapters: outputs of every shape, layers by name, and errors that name what does not fit."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from electrakit.common.errors import UserError
from electrakit.model.huggingface.adapt import as_discriminator, as_generator
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.parts import gather
from tests.helpers.tiny_models import (
    FAMILIES,
    PAD,
    POSITIONS,
    SEP,
    VOCAB,
    Wordwise,
    our_config,
    padded_rows,
    quietly,
    reformer,
    tiny_config,
    tiny_discriminator,
    tiny_generator,
    tiny_pretraining_electra,
    x_transformer,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:.*has two segments, but no sep_token_id")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("num_labels", [1, 2])
def test_a_token_classifier_gives_one_logit_per_token(family: str, num_labels: int) -> None:
    model = tiny_discriminator(family, num_labels=num_labels)
    adapter = as_discriminator(model, sep_token_id=SEP)
    full = model(padded_rows(), **adapter.inputs_for(padded_rows())).logits
    wanted = full[..., 0] if num_labels == 1 else full.log_softmax(-1)[..., 1] - full.log_softmax(-1)[..., 0]
    torch.testing.assert_close(adapter(padded_rows()), wanted, atol=1e-5, rtol=0)


def test_electra_for_pretraining_gives_its_own_logits() -> None:
    model = tiny_pretraining_electra()
    adapter = as_discriminator(model, sep_token_id=SEP)
    torch.testing.assert_close(adapter(padded_rows()), model(padded_rows(), **adapter.inputs_for(padded_rows())).logits)


def test_a_pad_id_that_differs_from_the_models_is_named() -> None:
    with pytest.raises(UserError, match=r"RobertaForMaskedLM was built with pad_token_id=1, but pad_token_id=0"):
        as_generator(tiny_generator("roberta", pad_token_id=1))
    with pytest.raises(UserError, match="pad_token_id=7"):
        as_discriminator(Discriminator(our_config()), pad_token_id=7)
    assert as_generator(tiny_generator("roberta", pad_token_id=1), pad_token_id=1)


READY = {
    "our generator": lambda: Generator(our_config()),
    "our discriminator": lambda: Discriminator(our_config()),
    "a generator's adapter": lambda: as_generator(tiny_generator("bert"), sep_token_id=SEP),
    "a discriminator's adapter": lambda: as_discriminator(tiny_discriminator("bert"), sep_token_id=SEP),
    "a layer's adapter": lambda: as_discriminator(
        tiny_generator("bert"), sep_token_id=SEP, discr_dim=32, discr_layer="bert"
    ),
}


@pytest.mark.parametrize("name", READY)
def test_a_model_that_was_built_for_other_special_ids_is_named(name: str) -> None:
    ready = READY[name]()
    adapt = as_generator if "generator" in name else as_discriminator
    assert adapt(ready, sep_token_id=SEP) is ready
    assert adapt(ready) is ready  # nothing said: its own
    with pytest.raises(UserError, match=r"\w+ was built with sep_token_id=3, but sep_token_id=7; make them equal"):
        adapt(ready, sep_token_id=7)
    with pytest.raises(UserError, match=r"\w+ was built with pad_token_id=0, but pad_token_id=5; make them equal"):
        adapt(ready, pad_token_id=5, sep_token_id=SEP)


def test_a_model_that_was_built_without_segments_is_not_asked_for_them() -> None:
    for ready in (Discriminator(our_config(sep_token_id=None)), as_discriminator(tiny_discriminator("bert"))):
        with pytest.raises(UserError, match="was built with sep_token_id=None, but sep_token_id=3"):
            as_discriminator(ready, sep_token_id=SEP)
    no_segments = as_discriminator(tiny_discriminator("distilbert"))
    assert as_discriminator(no_segments, sep_token_id=SEP) is no_segments


def test_a_compiled_model_of_ours_passes_unchanged() -> None:
    compiled = torch.compile(Generator(our_config()), backend="eager")
    assert as_generator(compiled, sep_token_id=SEP) is compiled
    with pytest.raises(UserError, match="Generator was built with pad_token_id=0"):
        as_generator(compiled, pad_token_id=1)


def test_our_own_models_and_adapters_pass_unchanged() -> None:
    for body in ("classic", "modern"):
        sizes = our_config(body=body, embedding_size=32)
        generator, discriminator = Generator(sizes), Discriminator(sizes)
        assert as_generator(generator) is generator
        assert as_discriminator(discriminator) is discriminator
    adapter = as_generator(tiny_generator("bert"))
    assert as_generator(adapter) is adapter
    adapter = as_discriminator(tiny_discriminator("bert"))
    assert as_discriminator(adapter) is adapter


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_plain_modules_give_logits_by_their_shape(num_outputs: int) -> None:
    model = Wordwise(num_outputs)
    full = model(padded_rows())
    wanted = full[..., 0] if num_outputs == 1 else full[..., 1] - full[..., 0]
    assert torch.equal(quietly(as_discriminator, model)(padded_rows()), wanted)
    flat = nn.Sequential(Wordwise(1), nn.Flatten(1))
    assert quietly(as_discriminator, flat)(padded_rows()).shape == (2, 16)


def test_a_plain_generator_is_gathered() -> None:
    model = Wordwise(VOCAB)
    assert torch.equal(quietly(as_generator, model)(padded_rows(), POSITIONS), gather(model(padded_rows()), POSITIONS))


def test_an_argument_that_is_merely_called_positions_is_left_alone() -> None:
    class WithPositions(Wordwise):
        def forward(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
            assert positions is None  # its own: numbers for the embeddings
            return super().forward(ids)

    class Gathers(Wordwise):
        gathers_positions = True

        def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
            return gather(super().forward(ids), positions)

    model = WithPositions(VOCAB)
    assert quietly(as_generator, model)(padded_rows(), POSITIONS).shape == (2, 3, VOCAB)
    marked = Gathers(VOCAB)
    assert as_generator(marked) is marked


def test_outputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match=r"gives \(2, 16, 5\) for ids \(2, 16\)"):
        quietly(as_discriminator, Wordwise(5))(padded_rows())
    with pytest.raises(UserError, match=r"generator Wordwise gives \(2, 128\)"):
        quietly(as_generator, Wordwise())(padded_rows(), POSITIONS)
    with pytest.raises(UserError, match="BertForTokenClassification cannot be a generator"):
        as_generator(tiny_discriminator("bert"))
    with pytest.raises(UserError, match=r"BertModel gives .*\(2, 16, 32\)|BertModel gives no logits"):
        as_discriminator(AutoModel.from_config(tiny_config("bert")))(padded_rows())


# electra-pytorch's README


def test_readme_example_with_a_named_layer() -> None:
    generator, discriminator = reformer(32, ff_mult=2), reformer(64, heads=4)
    generator.token_emb = discriminator.token_emb
    generator.pos_emb = discriminator.pos_emb
    adapter = as_discriminator(discriminator, discr_dim=64, discr_layer="reformer")
    logits = adapter(padded_rows())
    words = as_generator(generator)(padded_rows(), POSITIONS)
    (logits.square().sum() + words.square().sum()).backward()
    assert logits.shape == (2, 16) and words.shape == (2, 3, VOCAB)
    assert all(weight.grad is not None for weight in discriminator.reformer.parameters())
    assert adapter.to_logit.weight.grad is not None
    assert pickle.dumps(discriminator)  # no hook stays: torch.save of the user's own model, as the README does
    state = torch.random.get_rng_state()
    hidden = discriminator.reformer(
        discriminator.to_model_dim(discriminator.token_emb(padded_rows())),
        pos_emb=discriminator.layer_pos_emb(discriminator.token_emb(padded_rows())),
        input_mask=padded_rows() != PAD,
    )
    torch.random.set_rng_state(state)  # its hashes are random
    torch.testing.assert_close(adapter(padded_rows()), adapter.to_logit(hidden).squeeze(-1))


def test_readme_example_with_an_explicit_adapter() -> None:
    generator, discriminator = reformer(32, ff_mult=2), reformer(64, heads=4, return_embeddings=True)
    generator.token_emb = discriminator.token_emb
    generator.pos_emb = discriminator.pos_emb
    discriminator_with_adapter = nn.Sequential(discriminator, nn.Linear(64, 1))
    adapter = as_discriminator(discriminator_with_adapter)
    assert adapter.inputs_for.mask_name == "input_mask"
    logits = adapter(padded_rows())
    logits.square().sum().backward()
    assert logits.shape == (2, 16)
    assert all(weight.grad is not None for weight in discriminator.parameters())


def test_a_layer_is_found_by_dotted_name_and_by_index() -> None:
    model = x_transformer()
    last = as_discriminator(model, discr_dim=VOCAB)  # the last child by default, as in electra-pytorch
    assert last(padded_rows()).shape == (2, 16)
    by_name = as_discriminator(model, discr_dim=32, discr_layer="attn_layers.final_norm")
    by_index = as_discriminator(model, discr_dim=32, discr_layer=-2)  # attn_layers
    by_index.to_logit.load_state_dict(by_name.to_logit.state_dict())
    torch.testing.assert_close(by_name(padded_rows()), by_index(padded_rows()))
    tuple_output = quietly(as_discriminator, Wordwise(5), discr_dim=8, discr_layer="pair")
    assert tuple_output(padded_rows()).shape == (2, 16)
    transformers_body = as_discriminator(tiny_generator("bert"), discr_dim=32, discr_layer="bert")
    assert transformers_body(padded_rows()).shape == (2, 16)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ("nope", "ReformerLM has no layer 'nope'; it has token_emb, to_model_dim, .*reformer"),
        (99, "no layer 99; .* from -7 to 6"),
        ("reformer.layers", r"gave \(2, 16, 128\), wanted \(2, 16, 64\)"),
        ("reformer.layers.irrev_blocks.0", "gave no output"),
        ("pos_emb", "gave int, not a tensor"),
        ("reformer.layers.blocks.0.f.net.fn", "without gradient"),
    ],
)
def test_a_layer_that_does_not_fit_is_named(layer: str | int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        as_discriminator(reformer(64), discr_dim=64, discr_layer=layer)(padded_rows())


def test_a_new_output_layer_begins_as_the_official_codes_does() -> None:
    """Glorot-uniform weights, a bias of 0, in the type of the model."""
    layered = as_discriminator(reformer(64).to(torch.bfloat16), discr_dim=64, discr_layer="reformer")
    limit = (6 / (64 + 1)) ** 0.5
    assert layered.to_logit.weight.dtype == torch.bfloat16 and not layered.to_logit.bias.any()
    assert 0.8 * limit < layered.to_logit.weight.abs().max() <= 1.01 * limit


def test_a_layer_without_its_size_is_an_error() -> None:
    with pytest.raises(UserError, match="discr_layer='reformer' needs discr_dim"):
        as_discriminator(reformer(64), discr_layer="reformer")


def test_adapters_add_no_parameter_and_hide_none() -> None:
    generator, discriminator = tiny_generator("bert"), reformer(64)
    assert list(map(id, as_generator(generator).parameters())) == list(map(id, generator.parameters()))
    layered = as_discriminator(discriminator, discr_dim=64, discr_layer="reformer")
    own, new = set(map(id, discriminator.parameters())), set(map(id, layered.to_logit.parameters()))
    assert sorted(map(id, layered.parameters())) == sorted(own | new)


def test_training_the_adapter_trains_the_users_own_model() -> None:
    model = tiny_discriminator("bert")
    before = copy.deepcopy(model.state_dict())
    adapter = as_discriminator(model)
    adapter(padded_rows()).square().sum().backward()
    torch.optim.SGD(adapter.parameters(), lr=0.1).step()
    assert any(not torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_adapters_can_be_copied_and_pickled() -> None:
    adapter = as_generator(tiny_generator("electra"))
    for clone in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        assert torch.equal(clone(padded_rows(), POSITIONS), adapter(padded_rows(), POSITIONS))


COMPILED = {
    "ours": (lambda: Generator(our_config()).eval(), lambda: Discriminator(our_config()).eval()),
    "bert": (lambda: tiny_generator("bert"), lambda: tiny_discriminator("bert")),
    "electra": (lambda: tiny_generator("electra"), tiny_pretraining_electra),
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMPILED)
def test_both_interfaces_compile_as_one_graph(name: str) -> None:
    generator, discriminator = (make() for make in COMPILED[name])
    generator, discriminator = (
        as_generator(generator, sep_token_id=SEP),
        as_discriminator(discriminator, sep_token_id=SEP),
    )
    ids = padded_rows()
    for adapter, arguments in [(generator, (ids, POSITIONS)), (discriminator, (ids,))]:
        compiled = torch.compile(adapter, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(*arguments), adapter(*arguments), atol=1e-5, rtol=0)

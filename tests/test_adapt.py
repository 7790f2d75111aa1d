"""Any model through two interfaces: gathered heads equal full heads, padding is not seen, and what does not fit is named."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
import transformers
from reformer_pytorch import ReformerLM
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForTokenClassification
from x_transformers import Encoder, TransformerWrapper

from electrakit.errors import UserError
from electrakit.model.adapt import HEADS, as_discriminator, as_generator, gather
from electrakit.model.encoder import Discriminator, Generator
from electrakit.network_config import NetworkConfig

torch.set_num_threads(1)

VOCAB, SEP, PAD = 100, 3, 0
FAMILIES = ["electra", "bert", "albert", "distilbert", "roberta", "deberta-v2", "modernbert"]
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}
SIZES_OF: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "convbert": {"embedding_size": 16},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 66},
    "electra": {"embedding_size": 16},
    "eurobert": {"num_key_value_heads": 2},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roformer": {"embedding_size": 16},
}


def tiny_config(family: str, **changes: Any) -> Any:
    sizes = SIZES_OF[family] if family == "distilbert" else {**SIZES, **SIZES_OF.get(family, {})}
    ids = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": SEP}
    return AutoConfig.for_model(family, **{"vocab_size": VOCAB, **ids, **sizes, **changes})


def tiny_generator(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForMaskedLM.from_config(tiny_config(family, **changes)).eval()


def tiny_discriminator(family: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    return AutoModelForTokenClassification.from_config(tiny_config(family, **changes)).eval()


def tiny_pretraining_electra(**changes: Any) -> Any:
    torch.manual_seed(1)
    return transformers.ElectraForPreTraining(tiny_config("electra", **changes)).eval()


def our_config(**changes: Any) -> NetworkConfig:
    sizes = {"num_layers": 2, "hidden_size": 32, "ffn_size": 64, "num_heads": 2, "embedding_size": 16, "max_length": 66}
    return NetworkConfig(**{"vocab_size": VOCAB, "sep_token_id": SEP, **sizes, **changes})


def padded_rows() -> Tensor:
    """[CLS] A [SEP] B [SEP], the second row padded: (2, 16)."""
    ids = torch.randint(5, VOCAB, (2, 16), generator=torch.Generator().manual_seed(0))
    ids[:, 0], ids[:, 6], ids[0, 15], ids[1, 10], ids[1, 11:] = 1, SEP, SEP, SEP, PAD
    return ids


POSITIONS = torch.tensor([[1, 4, 14], [9, 2, 2]])


def reformer(dim: int, **changes: Any) -> ReformerLM:
    """The README's ReformerLM, scaled down; full attention, so that its random hashes do not blur a comparison."""
    torch.manual_seed(dim)
    sizes = {
        "num_tokens": VOCAB,
        "emb_dim": 16,
        "dim_head": 8,
        "heads": 2,
        "depth": 2,
        "max_seq_len": 16,
        "bucket_size": 4,
    }
    return ReformerLM(dim=dim, **{**sizes, **changes})


def x_transformer(**changes: Any) -> TransformerWrapper:
    torch.manual_seed(0)
    return TransformerWrapper(
        num_tokens=VOCAB, max_seq_len=16, attn_layers=Encoder(dim=32, depth=2, heads=2), **changes
    ).eval()


class Wordwise(nn.Module):
    """A plain module without a mask, for the shapes of outputs."""

    def __init__(self, *num_outputs: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, 8)
        self.unused = nn.Linear(8, 8)
        self.pair = nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, num_outputs[0]) if num_outputs else nn.Flatten(1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.pair(self.words(ids))[0])


def quietly(adapt: Any, model: nn.Module, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* cannot be told")
        return adapt(model, **options)


@pytest.mark.parametrize("family", sorted(HEADS))
def test_head_at_the_positions_equals_the_full_head(family: str) -> None:
    model = tiny_generator(family)
    adapter = as_generator(model, sep_token_id=SEP)
    assert adapter.head is not None
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
        padded, alone = (
            adapter(row, *rest)[:, :8],
            adapter(row[:, :12], *rest)[:, :8],
        )  # 11 tokens; reformer wants a multiple of 4
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


def test_a_pad_id_that_differs_from_the_models_is_named() -> None:
    with pytest.raises(UserError, match=r"RobertaForMaskedLM has config.pad_token_id=1, but pad_token_id=0"):
        as_generator(tiny_generator("roberta", pad_token_id=1))
    with pytest.raises(UserError, match="pad_token_id=7"):
        as_discriminator(Discriminator(our_config()), pad_token_id=7)
    assert as_generator(tiny_generator("roberta", pad_token_id=1), pad_token_id=1)


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


def test_a_module_that_cannot_be_told_about_padding_warns() -> None:
    with pytest.warns(UserWarning, match="Wordwise cannot be told what is padding"):
        as_generator(Wordwise(VOCAB))


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
    for twin in (copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))):
        assert torch.equal(twin(padded_rows(), POSITIONS), adapter(padded_rows(), POSITIONS))


def test_a_generator_whose_embedding_was_swapped_predicts_with_the_new_table() -> None:
    generator, discriminator = tiny_generator("electra"), tiny_pretraining_electra()
    generator.electra.embeddings = discriminator.electra.embeddings  # as the README shows for ReformerLM
    assert (
        as_generator(generator).model.generator_lm_head.weight
        is discriminator.electra.embeddings.word_embeddings.weight
    )


COMPILED = {
    "ours": (lambda: Generator(our_config()).eval(), lambda: Discriminator(our_config()).eval()),
    "bert": (lambda: tiny_generator("bert"), lambda: tiny_discriminator("bert")),
    "electra": (lambda: tiny_generator("electra"), tiny_pretraining_electra),
}


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

"""Our networks and transformers' models: the same logits from the same weights, both ways, and nothing lost on the way."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.model.huggingface.weights import from_transformers, to_transformers
from electrakit.model.layouts import segment_ids
from electrakit.model.networks import Discriminator, Generator, Network

torch.set_num_threads(1)

PAD, SEP = 0, 3
SIZES = {"vocab_size": 60, "num_layers": 2, "hidden_size": 32, "ffn_size": 48, "num_heads": 2, "max_length": 24}
CONFIGS = {
    "classic": NetworkConfig(**SIZES, embedding_size=32, sep_token_id=SEP),
    "classic, projected": NetworkConfig(**SIZES, embedding_size=16, sep_token_id=SEP),
    "classic, one segment": NetworkConfig(**SIZES, embedding_size=16, sep_token_id=None, dropout=0.2),
    "modern": NetworkConfig(**SIZES, embedding_size=32, sep_token_id=SEP, body="modern"),
    "modern, other base": NetworkConfig(
        **SIZES, embedding_size=32, sep_token_id=None, body="modern", rotary_base=160_000.0
    ),
}
CONFIGS |= {
    "deberta": NetworkConfig(**SIZES, embedding_size=32, sep_token_id=SEP, body="deberta", position_buckets=8),
    "deberta, convolution": NetworkConfig(
        **SIZES, embedding_size=32, sep_token_id=None, body="deberta", position_buckets=256, convolution=3
    ),
}
PAIRS = [
    pytest.param(kind, config, id=f"{kind.__name__}, {name}")
    for name, config in CONFIGS.items()
    for kind in (Generator, Discriminator)
]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def rows() -> Tensor:
    """Full, padded, very short, and without a second segment."""
    ids = torch.randint(5, 60, (4, 20), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = 2
    ids[:, 8] = ids[0, 19] = ids[1, 15] = SEP
    ids[1, 16:] = ids[2, 9:] = ids[3, 3:] = PAD
    return ids


def shaken(network: Network) -> Network:
    """Far from the first weights, where all logits are nearly 0 and biases do not show."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return network.eval()


def their_logits(model: transformers.PreTrainedModel, ids: Tensor, config: NetworkConfig) -> Tensor:
    inputs = {"input_ids": ids, "attention_mask": (ids != PAD).long()}
    if config.body == "classic":
        inputs["token_type_ids"] = segment_ids(ids, ids != PAD, config.sep_token_id)
    logits = model(**inputs).logits
    is_two_labels = type(model).__name__.endswith("ForTokenClassification")
    return logits[..., 1] - logits[..., 0] if is_two_labels else logits


def their_model(kind: type[Network], config: NetworkConfig) -> transformers.PreTrainedModel:
    """With transformers' own first weights, moved a little."""
    model = type(to_transformers(kind(config)))(to_transformers(kind(config)).config)
    return shaken(model)


@torch.no_grad()
def largest_difference(network: Network, model: transformers.PreTrainedModel) -> float:
    ids = rows()
    ours, theirs = network(ids), their_logits(model, ids, network.config)
    assert ours.shape == theirs.shape
    assert theirs[ids != PAD].std() > 0.02
    return (ours - theirs)[ids != PAD].abs().max().item()


@pytest.mark.parametrize(("kind", "config"), PAIRS)
def test_our_weights_give_the_same_logits_in_transformers(kind, config):
    network = shaken(kind(config))
    assert largest_difference(network, to_transformers(network)) < 1e-5


@pytest.mark.parametrize(("kind", "config"), PAIRS)
def test_transformers_weights_give_the_same_logits_here(kind, config):
    model = their_model(kind, config)
    assert largest_difference(from_transformers(model), model) < 1e-5


@pytest.mark.parametrize(("kind", "config"), PAIRS)
def test_there_and_back_is_bit_exact_and_keeps_the_config(kind, config):
    network = shaken(kind(config))
    back = from_transformers(to_transformers(network))
    assert type(back) is kind
    assert back.config == config
    assert list(back.state_dict()) == list(network.state_dict())
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize(("kind", "config"), PAIRS)
def test_back_and_there_is_bit_exact(kind, config):
    model = their_model(kind, config)
    again = to_transformers(from_transformers(model)).state_dict()
    assert set(again) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        if name.startswith("classifier."):  # of two labels the difference is kept
            assert torch.equal(again[name][1] - again[name][0], tensor[1] - tensor[0])
        else:
            assert torch.equal(again[name], tensor), name


@pytest.mark.parametrize(("kind", "config"), PAIRS)
def test_a_saved_model_opens_without_our_code_and_comes_back(kind, config, tmp_path: Path):
    network = shaken(kind(config))
    model = to_transformers(network)
    model.save_pretrained(tmp_path)
    opened = type(model).from_pretrained(tmp_path)
    assert largest_difference(network, opened) < 1e-5
    back = from_transformers(opened)
    assert back.config == config
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_gradients_are_the_same(config):
    network = shaken(Generator(config))
    model = to_transformers(network)
    ids = rows()
    network(ids)[ids != PAD].logsumexp(-1).sum().backward()
    their_logits(model, ids, config)[ids != PAD].logsumexp(-1).sum().backward()
    ours, theirs = network.body.embeddings.word.weight.grad, model.get_input_embeddings().weight.grad
    is_real = torch.arange(60) != PAD
    torch.testing.assert_close(ours[is_real], theirs[is_real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "config", [CONFIGS["classic"], CONFIGS["modern"], CONFIGS["deberta"]], ids=["classic", "modern", "deberta"]
)
def test_the_exported_generator_has_one_table(config):
    model = to_transformers(Generator(config))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_the_exported_modern_discriminator_says_what_its_labels_mean():
    network = shaken(Discriminator(CONFIGS["modern"]))
    model = to_transformers(network)
    assert model.config.id2label == {0: "original", 1: "replaced"}
    logits = model(rows(), attention_mask=rows() != PAD).logits
    assert torch.equal(logits[..., 0], torch.zeros(4, 20))


@pytest.mark.parametrize("is_training", [True, False])
def test_mode_and_precision_are_kept_and_no_random_number_is_spent(is_training):
    network = Discriminator(CONFIGS["classic"]).bfloat16().train(is_training)
    before = torch.get_rng_state()
    model = to_transformers(network)
    back = from_transformers(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training is back.training is is_training
    assert {parameter.dtype for parameter in (*model.parameters(), *back.parameters())} == {torch.bfloat16}


def test_the_copy_is_a_copy():
    network = Discriminator(CONFIGS["classic"])
    model = to_transformers(network)
    back = from_transformers(model)
    ours = {parameter.data_ptr() for parameter in network.parameters()}
    theirs = {parameter.data_ptr() for parameter in model.parameters()}
    assert not ours & theirs
    assert not theirs & {parameter.data_ptr() for parameter in back.parameters()}


def test_google_configs_do_not_name_sep_and_mean_102():
    config = transformers.ElectraConfig(num_hidden_layers=1, hidden_size=8, embedding_size=8, num_attention_heads=1)
    assert from_transformers(transformers.ElectraForPreTraining(config)).config.sep_token_id == 102


def test_an_unknown_sep_is_asked_for():
    model = their_model(Discriminator, CONFIGS["classic"])
    del model.config.sep_token_id
    with pytest.raises(UserError, match=r"sep_token_id=tokenizer\.sep_token_id"):
        from_transformers(model)
    assert from_transformers(model, sep_token_id=7).config.sep_token_id == 7


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("classic", "hidden_act", "relu"),
        ("classic", "layer_norm_eps", 1e-5),
        ("classic", "type_vocab_size", 3),
        ("classic", "position_embedding_type", "relative_key"),
        ("classic", "is_decoder", True),
        ("classic", "add_cross_attention", True),
        ("classic", "tie_word_embeddings", False),
        ("modern", "hidden_activation", "silu"),
        ("modern", "norm_bias", True),
        ("modern", "attention_bias", True),
        ("modern", "decoder_bias", False),
        ("modern", "mlp_dropout", 0.3),
        ("modern", "pad_token_id", None),
        ("modern", "layer_types", ["full_attention", "sliding_attention"]),
        ("deberta", "position_biased_input", True),
        ("deberta", "share_att_key", False),
        ("deberta", "pos_att_type", ["c2p"]),
        ("deberta", "norm_rel_ebd", "none"),
        ("deberta", "position_buckets", -1),
        ("deberta", "max_relative_positions", 7),
        ("deberta", "attention_head_size", 8),
        ("deberta, convolution", "conv_act", "tanh"),
        ("deberta, convolution", "conv_groups", 2),
        ("modern", "rope_parameters", {"full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    ],
)
def test_what_we_have_not_is_refused_by_name(name, setting, value):
    model = their_model(Generator, CONFIGS[name])
    setattr(model.config, setting, value)
    with pytest.raises(UserError, match=setting):
        from_transformers(model)


def test_an_untied_output_table_is_refused():
    model = their_model(Generator, CONFIGS["classic"])
    model.generator_lm_head.weight = torch.nn.Parameter(model.generator_lm_head.weight.detach() + 1)
    with pytest.raises(UserError, match=r"generator_lm_head\.weight"):
        from_transformers(model)


def test_other_models_are_refused_by_name():
    config = to_transformers(Generator(CONFIGS["classic"])).config
    with pytest.raises(UserError, match="ElectraForTokenClassification"):
        from_transformers(transformers.ElectraForTokenClassification(config))
    with pytest.raises(UserError, match="3 labels"):
        config = to_transformers(Discriminator(CONFIGS["modern"])).config
        from_transformers(transformers.ModernBertForTokenClassification(_with_labels(config, 3)))
    with pytest.raises(UserError, match="Linear"):
        to_transformers(torch.nn.Linear(1, 1))


def _with_labels(config, num_labels: int):
    config.num_labels = num_labels
    return config


def test_small_has_the_published_number_of_parameters():
    """13.5 M, and to the last one as many as transformers' own ELECTRA-small, whose defaults are ours."""
    with torch.device("meta"):
        ours, theirs = Discriminator(NetworkConfig()), transformers.ElectraForPreTraining(transformers.ElectraConfig())
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert count == sum(parameter.numel() for parameter in theirs.parameters()) == 13_549_057

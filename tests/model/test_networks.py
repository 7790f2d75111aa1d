"""Generator and discriminator: properties of both bodies, and of the classic body alone."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.model.layouts import segment_ids
from electrakit.model.networks import Discriminator, Generator, Network

torch.set_num_threads(1)

PAD, SEP = 0, 3
CLASSIC = NetworkConfig(
    vocab_size=60,
    num_layers=2,
    hidden_size=32,
    ffn_size=48,
    num_heads=2,
    embedding_size=16,
    max_length=24,
    sep_token_id=SEP,
)
MODERN = replace(CLASSIC, body="modern", embedding_size=32)
DEBERTA = replace(CLASSIC, body="deberta", embedding_size=32, position_buckets=8, convolution=3)
BOTH = pytest.mark.parametrize("config", [CLASSIC, MODERN, DEBERTA], ids=["classic", "modern", "deberta"])
NETWORKS = pytest.mark.parametrize("kind", [Generator, Discriminator])


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def rows(num_tokens: int = 16, seed: int = 1) -> Tensor:
    ids = torch.randint(5, 60, (3, num_tokens), generator=torch.Generator().manual_seed(seed))
    ids[:, 0], ids[:, 6] = 2, SEP
    ids[1, 10:] = ids[2, 7:] = PAD
    return ids


def keep(sizes: list[int], tensor: Tensor) -> Tensor:
    sizes.append(tensor.numel())
    return tensor


def build(kind: type[Network], config: NetworkConfig) -> Network:
    """Larger weights than the first ones, so that differences show."""
    torch.manual_seed(0)
    network = kind(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


@BOTH
def test_shapes(config):
    ids, positions = rows(), torch.tensor([[1, 2], [4, 3], [5, 5]])
    assert Generator(config)(ids).shape == (3, 16, 60)
    assert Generator(config)(ids, positions).shape == (3, 2, 60)
    assert Generator(config).hidden(ids).shape == (3, 16, 32)
    assert Discriminator(config)(ids).shape == (3, 16)


@BOTH
def test_the_head_at_chosen_positions_equals_the_whole_head(config):
    generator, ids, positions = build(Generator, config), rows(), torch.tensor([[1, 12], [4, 3], [5, 5]])
    whole = generator(ids).gather(1, positions[..., None].expand(-1, -1, 60))
    torch.testing.assert_close(generator(ids, positions), whole, rtol=0, atol=1e-5)


@BOTH
@NETWORKS
def test_more_padding_changes_nothing_at_real_tokens(config, kind):
    network, ids = build(kind, config), rows()
    for extra in (1, 8):
        longer = network(F.pad(ids, (0, extra), value=PAD))[:, :16]
        torch.testing.assert_close(longer[ids != PAD], network(ids)[ids != PAD], rtol=0, atol=1e-5)


@BOTH
def test_no_gradient_passes_between_a_real_token_and_padding(config):
    network, ids = build(Discriminator, config), rows()
    table = network.body.embeddings.word.weight
    (gradient,) = torch.autograd.grad(network(ids)[ids != PAD].sum(), table)
    assert gradient[PAD].abs().max() == 0
    assert gradient[ids[ids != PAD]].abs().amax(-1).min() > 0


@BOTH
@NETWORKS
def test_rows_do_not_influence_each_other(config, kind):
    network, ids = build(kind, config), rows()
    torch.testing.assert_close(network(ids[1:2]), network(ids)[1:2], rtol=0, atol=1e-5)


@BOTH
def test_order_matters(config):
    network, ids = build(Discriminator, config), rows()[:1]
    swapped = ids[:, [0, 2, 1, *range(3, 16)]]
    assert (network(ids)[0, 5] - network(swapped)[0, 5]).abs() > 1e-3


@BOTH
def test_a_row_of_padding_gives_no_nan_forwards_or_backwards(config):
    network, ids = build(Discriminator, config).train(), rows()
    ids[1] = PAD
    logits = network(ids)
    logits[ids != PAD].sum().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@BOTH
@NETWORKS
def test_every_parameter_learns(config, kind):
    network, ids = build(kind, config).train(), rows()
    (network(ids)[ids != PAD] ** 2).sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in network.parameters())


@BOTH
@NETWORKS
def test_activations_that_are_computed_again_give_the_same_gradients(config, kind):
    gradients, kept = [], []
    for recompute in (False, True):
        network, sizes = build(kind, config).train(), []
        network.body.recompute = recompute
        torch.manual_seed(1)  # the same dropout
        pack = partial(keep, sizes)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = network(rows()).square().mean()
        loss.backward()
        gradients.append([parameter.grad for parameter in network.parameters()])
        kept.append(sum(sizes))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert kept[1] < kept[0]


@BOTH
@NETWORKS
def test_dropout_is_on_in_training_and_off_in_evaluation(config, kind):
    network, ids = build(kind, config), rows()
    assert torch.equal(network(ids), network(ids))
    network.train()
    assert not torch.equal(network(ids), network(ids))
    for rates in ({"dropout": 0.0}, {"attention_dropout": 0.0}):  # each alone is on
        network = kind(replace(config, **rates)).train()
        assert not torch.equal(network(ids), network(ids))
    network = kind(replace(config, dropout=0.0, attention_dropout=0.0)).train()
    assert torch.equal(network(ids), network(ids))


@BOTH
def test_the_output_table_is_the_word_table(config):
    generator = Generator(config)
    tables = [name for name, parameter in generator.named_parameters() if parameter.shape[0] == 60]
    assert tables == ["output_bias", "body.embeddings.word.weight"]
    assert [name for name, tensor in generator.state_dict().items() if tensor.shape[0] == 60] == tables


@BOTH
def test_the_output_table_follows_shared_embeddings(config):
    generator, discriminator = build(Generator, config), build(Discriminator, config)
    generator.body.embeddings = discriminator.body.embeddings
    ids = rows()
    before = generator(ids)
    with torch.no_grad():
        discriminator.body.embeddings.word.weight[7] += 1
    changed = (generator(ids) - before).abs().amax((0, 1))
    assert changed[7] > 0.1
    generator(ids, torch.tensor([[1], [1], [1]])).sum().backward()
    assert discriminator.body.embeddings.word.weight.grad[59].abs().sum() > 0  # through the softmax, not the input
    pair = nn.ModuleList([generator, discriminator])
    assert sum(parameter.shape == (60, config.embedding_size) for parameter in pair.parameters()) == 1


@pytest.mark.long
@BOTH
@NETWORKS
def test_forward_and_backward_compile_as_one_graph(config, kind):
    network, ids = build(kind, config), rows()
    inputs = (ids, torch.tensor([[1, 2], [4, 3], [5, 5]])) if kind is Generator else (ids,)
    torch.compiler.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), network(*inputs), rtol=0, atol=1e-5)
    (compiled(*inputs) ** 2).sum().backward()
    gradient = network.body.embeddings.word.weight.grad.clone()
    network.zero_grad()
    (network(*inputs) ** 2).sum().backward()
    torch.testing.assert_close(gradient, network.body.embeddings.word.weight.grad, rtol=1e-4, atol=1e-5)
    compiled.train()
    compiled(*inputs).sum().backward()  # dropout does not break the graph


@BOTH
@NETWORKS
def test_bf16_autocast_runs_and_is_close(config, kind):
    network, ids = build(kind, config), rows()
    with torch.autocast("cpu", torch.bfloat16):
        logits = network.train()(ids)
        logits[ids != PAD].float().sum().backward()
        close = network.eval()(ids)
    assert logits.dtype == torch.bfloat16
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())
    assert (close.float() - network(ids))[ids != PAD].abs().max() < 0.3


@BOTH
@NETWORKS
def test_rows_longer_than_the_network_are_refused(config, kind):
    network = kind(config)
    network(torch.ones(1, 24, dtype=torch.long))
    with pytest.raises(UserError, match="25 tokens is longer than max_length=24"):
        network(torch.ones(1, 25, dtype=torch.long))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "hidden_size 32 does not divide by num_heads 5"),
        ({"num_layers": 0}, "num_layers"),
        ({"dropout": 1.0}, "dropout"),
        ({"attention_dropout": -0.1}, "attention_dropout"),
        ({"pad_token_id": 60}, "pad_token_id 60"),
        ({"body": "modern"}, "embedding_size 16 equal to hidden_size 32"),
        ({"body": "modern", "embedding_size": 32, "num_heads": 32}, "must be even"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replace(CLASSIC, **changes)


def test_segment_b_begins_behind_the_first_sep_and_padding_is_segment_a():
    ids = torch.tensor([[2, 9, SEP, 9, 9, SEP, PAD], [2, 9, 9, SEP, PAD, PAD, PAD], [2, 9, 9, 9, 9, 9, 9]])
    assert segment_ids(ids, ids != PAD, SEP).tolist() == [[0, 0, 0, 1, 1, 1, 0], [0] * 7, [0] * 7]
    assert segment_ids(ids, ids != PAD, None).tolist() == [[0] * 7] * 3


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([PAD, SEP, 9]), min_size=1, max_size=12))
def test_segments_equal_a_plain_loop(row):
    ids = torch.tensor([row])
    expected = [int(SEP in row[:place] and token != PAD) for place, token in enumerate(row)]
    assert segment_ids(ids, ids != PAD, SEP).tolist() == [expected]


def test_the_classic_body_uses_segments():
    network, ids = build(Discriminator, CLASSIC), rows()
    before = network(ids)
    with torch.no_grad():
        network.body.embeddings.segment.weight[1] += torch.randn(16)
    changed = (network(ids) - before).abs()
    assert changed[0].min() > 0  # has a second segment, and every token looks at it
    assert changed[2, :7].max() == 0  # has none


def test_embeddings_are_projected_only_if_sizes_differ():
    assert "body.projection.weight" in Generator(CLASSIC).state_dict()
    assert "body.projection.weight" not in Generator(replace(CLASSIC, embedding_size=32)).state_dict()


LARGE = replace(CLASSIC, vocab_size=2000, hidden_size=128, ffn_size=256, embedding_size=64)
TRUNCATED_STD = 0.02 * 0.8796  # standard deviation of a normal cut at two sigma


def test_classic_first_weights_are_the_official_ones():
    torch.manual_seed(0)
    generator, discriminator = Generator(LARGE), Discriminator(LARGE)
    glorot = {"body.projection.weight": (6 / (64 + 128)) ** 0.5, "score.weight": (6 / (128 + 1)) ** 0.5}
    for name, parameter in (*generator.named_parameters(), *discriminator.named_parameters()):
        if name in glorot:
            assert parameter.abs().max() <= glorot[name]
            assert parameter.std().item() == pytest.approx(glorot[name] / 3**0.5, rel=0.2)
        elif parameter.dim() == 2:
            assert parameter.abs().max() <= 0.04
            assert parameter.std().item() == pytest.approx(TRUNCATED_STD, rel=4 / (2 * parameter.numel()) ** 0.5)
            assert parameter.mean().abs() < 4 * TRUNCATED_STD / parameter.numel() ** 0.5
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all()
    assert generator.body.embeddings.word.weight[PAD].std().item() == pytest.approx(TRUNCATED_STD, rel=0.4)


def test_generators_of_one_seed_are_equal():
    torch.manual_seed(5)
    first = Generator(CLASSIC)
    torch.manual_seed(5)
    assert all(
        torch.equal(one, other) for one, other in zip(first.parameters(), Generator(CLASSIC).parameters(), strict=True)
    )


def with_kinds(*modules: str) -> list[str]:
    return [f"{module}.{kind}" for module in modules for kind in ("weight", "bias")]


def test_classic_state_dict_keys_are_stable():
    """Checkpoints hold these names."""
    config = replace(CLASSIC, num_layers=1)
    tables = [f"body.embeddings.{name}.weight" for name in ("word", "position", "segment")]
    parts = ("qkv", "attention_out", "attention_norm", "ffn_in", "ffn_out", "ffn_norm")
    body = [
        *tables,
        *with_kinds("body.embeddings.norm", "body.projection", *(f"body.layers.0.{part}" for part in parts)),
    ]
    assert list(Generator(config).state_dict()) == ["output_bias", *body, *with_kinds("head.dense", "head.norm")]
    assert list(Discriminator(config).state_dict()) == [*body, *with_kinds("head.dense", "score")]


def test_the_small_generator_adds_what_the_reference_says():
    with torch.device("meta"):
        generator = Generator(NetworkConfig(hidden_size=64, ffn_size=256, num_heads=1))
    own = [name for name, _ in generator.named_parameters() if not name.startswith("body.embeddings.")]
    assert sum(generator.get_parameter(name).numel() for name in own) == pytest.approx(0.65e6, rel=0.02)

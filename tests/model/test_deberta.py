"""The deberta body against transformers at all lengths, a slow reference, and what it refuses."""

from dataclasses import replace

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.config.network import NetworkConfig
from electrakit.model import kernels
from electrakit.model.deberta import bucket_rows
from electrakit.model.huggingface.names import DEBERTA_NEW
from electrakit.model.huggingface.weights import from_transformers, to_transformers
from electrakit.model.layouts import PaddedTokens, skew
from electrakit.model.networks import Discriminator, Generator, use_kernels

torch.set_num_threads(1)
SMALL = NetworkConfig(
    body="deberta",
    vocab_size=60,
    num_layers=2,
    hidden_size=32,
    embedding_size=32,
    ffn_size=48,
    num_heads=2,
    max_length=512,
    position_buckets=32,
)


def build(kind, config=SMALL):
    torch.manual_seed(0)
    network = kind(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


def rows(length):
    ids = torch.randint(5, 60, (3, length), generator=torch.Generator().manual_seed(length))
    ids[1, length // 2 + 1 :] = ids[2, 1:] = 0
    return ids


@pytest.mark.parametrize(
    ("num_buckets", "max_length"),
    [(256, 512), (256, 128), (256, 129), (32, 512), (8, 24), (64, 65), (4, 100), (2, 50), (7, 40), (6, 1)],
)
def test_rows_of_distances_are_those_of_transformers(num_buckets, max_length):
    states = torch.zeros(1, max_length, 1)
    buckets = build_relative_position(states, states, num_buckets, max_length)[0]
    rows = torch.tensor(bucket_rows(num_buckets, max_length))
    places = torch.arange(max_length)[:, None] - torch.arange(max_length) + max_length - 1
    assert torch.equal(rows[places], (buckets + num_buckets).clamp(0, 2 * num_buckets - 1))
    # Of keys, transformers looks up the other direction with the other sign: the same row.
    assert torch.equal(rows[places], (num_buckets - buckets.T).clamp(0, 2 * num_buckets - 1))


@pytest.mark.parametrize("length", [1, 8, 31, 128, 129, 512])
@pytest.mark.parametrize("convolution", [None, 3])
@pytest.mark.parametrize("with_kernels", [False, True])
@torch.no_grad()
def test_logits_are_those_of_transformers_at_any_length(length, convolution, with_kernels):
    if with_kernels and kernels.problem() is not None:
        pytest.skip("no compiler here")
    ids = rows(length)
    network = build(Discriminator, replace(SMALL, convolution=convolution))
    theirs = to_transformers(network)(ids, attention_mask=(ids != 0).long()).logits
    use_kernels(network, with_kernels)
    assert network.can_use_kernels(ids) is with_kernels
    difference = network(ids) - (theirs[..., 1] - theirs[..., 0])
    assert difference[ids != 0].abs().max() < 1e-5


@torch.no_grad()
def test_a_generator_with_microsofts_names_for_the_head_opens_too():
    model = to_transformers(build(Generator))
    new = type(model)(type(model.config)(**{**model.config.to_dict(), "legacy": False})).eval()
    network = from_transformers(new)
    ids = rows(9)
    theirs = new(ids, attention_mask=(ids != 0).long()).logits
    torch.testing.assert_close(network(ids)[ids != 0], theirs[ids != 0], rtol=0, atol=1e-5)
    assert torch.equal(new.state_dict()[DEBERTA_NEW.modules["generator.output_bias"][0]], network.output_bias)


def test_a_skewed_view_has_the_diagonals():
    wide = torch.randn(2, 5, 10)
    found = skew(wide)
    assert (
        found.data_ptr() != wide.data_ptr() and found.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr()
    )
    for query in range(5):
        for key in range(5):
            assert torch.equal(found[:, query, key], wide[:, query, key - query + 4])


@torch.no_grad()
def test_the_enhanced_mask_decoder_is_that_of_transformers_layers():
    """Keys and values twice from the states before the last layer; queries from those plus positions, then from the result."""
    network = build(Generator, replace(SMALL, enhanced_mask_decoder=True, convolution=3))
    plain = Generator(replace(SMALL, convolution=3)).eval()
    plain.load_state_dict(
        {name: value for name, value in network.state_dict().items() if name != "body.position.weight"}
    )
    body = to_transformers(plain).deberta
    ids = rows(20)
    attended = (ids != 0).long()
    found = body(ids, attention_mask=attended, output_hidden_states=True).hidden_states[-2]
    query = found + network.body.position.weight[:20]
    mask = body.encoder.get_attention_mask(attended)
    for _ in range(2):
        query = body.encoder.layer[-1](
            found,
            mask,
            query_states=query,
            relative_pos=body.encoder.get_rel_pos(found),
            rel_embeddings=body.encoder.get_rel_embedding(),
        )[0]
    for with_kernels in (False, kernels.problem() is None):
        use_kernels(network, with_kernels)
        torch.testing.assert_close(network.hidden(ids)[ids != 0], query[ids != 0], rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="no enhanced mask decoder"):
        to_transformers(network)


@pytest.mark.parametrize("with_kernels", [False, True])
def test_recomputing_changes_nothing_and_every_weight_learns(with_kernels):
    if with_kernels and kernels.problem() is not None:
        pytest.skip("no compiler here")
    config = replace(SMALL, dropout=0.3, attention_dropout=0.3, convolution=3, enhanced_mask_decoder=True)
    network = build(Generator, config).train()
    use_kernels(network, with_kernels)
    found = []
    for recompute in (False, True):
        network.body.recompute = recompute
        network.zero_grad()
        torch.manual_seed(0)
        network(rows(16)).square().sum().backward()
        found.append([parameter.grad.clone() for parameter in network.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert all(gradient.abs().sum() > 0 for gradient in found[0])


def test_dropout_is_where_transformers_has_it():
    calls = []

    class Recording(PaddedTokens):
        def dropout(self, hidden, rate):
            calls.append((tuple(hidden.shape), rate))
            return hidden

    config = replace(SMALL, num_layers=1, dropout=0.3, attention_dropout=0.2, convolution=3)
    network = build(Discriminator, config).train()
    network.body(Recording.of(rows(12), 0, None))
    states, table = (3, 12, 32), (23, 32)  # 23 distances in rows of 12
    layer = [(table, 0.3), ((2, 3, 12, 12), 0.2), (states, 0.3), (states, 0.3)]
    assert calls == [(states, 0.3), *layer, (states, 0.3)]  # embeddings, the layer, the convolution
    assert network.head.p == 0.3


def test_a_network_in_bf16_and_on_meta():
    assert build(Discriminator).bfloat16()(rows(16)).isfinite().all()
    with torch.device("meta"):
        network = Discriminator(SMALL)
        assert network(torch.zeros(2, 16, dtype=torch.long)).shape == (2, 16)
    assert Discriminator(SMALL).to("meta")(torch.zeros(2, 16, dtype=torch.long, device="meta")).shape == (2, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_size": 16}, "no embedding projection"),
        ({"convolution": 2}, "must be odd"),
        ({"position_buckets": 1}, "position_buckets"),
        ({"body": "modern", "convolution": 3}, "convolution goes with body='deberta'"),
        ({"body": "classic", "enhanced_mask_decoder": True}, "enhanced_mask_decoder goes with body='deberta'"),
        ({"num_layers": 1, "enhanced_mask_decoder": True}, "num_layers must be at least 2"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"discriminator": {"enhanced_mask_decoder": True}}, "is of a network that predicts words"),
        ({"init_attention": "neighbours"}, "needs RoPE, generator.body is 'deberta'"),
        ({"share": "layers", "generator": {"position_buckets": 8}}, "generator.position_buckets is 8"),
        (
            {"share": "encoder", "generator": {"num_layers": 6, "enhanced_mask_decoder": True}},
            "generator.enhanced_mask_decoder is True",
        ),
    ],
)
def test_what_does_not_fit_in_a_pair_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        presets.deberta_mini(optim={"decoupled": False}, **changes)

"""Attention heads that begin by looking at neighbours: where they look, in our network and in transformers'."""

import pytest
import torch

from electrakit.config.network import NetworkConfig
from electrakit.model.huggingface.weights import to_transformers
from electrakit.model.neighbours import OFFSETS, attend_to_neighbours
from electrakit.model.networks import Generator

IDS = torch.randint(5, 100, (2, 512), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_the_first_heads_of_the_exported_model_look_at_their_offsets(num_heads):
    torch.manual_seed(0)
    config = NetworkConfig(
        body="modern",
        vocab_size=100,
        num_layers=4,
        hidden_size=128,
        embedding_size=128,
        ffn_size=64,
        num_heads=num_heads,
    )
    network = Generator(config).eval()
    with torch.no_grad():  # counted vectors have different lengths
        network.body.embeddings.word.weight.mul_(torch.linspace(0.3, 1.5, 100)[:, None])
    attend_to_neighbours(network.body)
    model = to_transformers(network).eval()
    model.set_attn_implementation("eager")
    attentions = torch.stack(model(IDS, output_attentions=True).attentions, 1).flatten(
        1, 2
    )  # (B, layers * heads, T, T)
    inside = torch.arange(2, IDS.size(1) - 2)  # these have both neighbours
    for head, offset in enumerate(OFFSETS):
        assert attentions[:, head, inside, inside + offset].mean() > 0.8
    if num_heads > 1:  # the others are as undecided as random weights are
        assert attentions[:, len(OFFSETS), inside].max() < 0.2


def test_what_words_are_predicted_does_not_change():
    """The constant is in every word's vector: it adds the same to all logits."""
    torch.manual_seed(0)
    config = NetworkConfig(body="modern", vocab_size=100, num_layers=1, hidden_size=64, embedding_size=64, num_heads=1)
    network = Generator(config).eval()
    attend_to_neighbours(network.body)
    states, table = torch.randn(7, 64), network.body.embeddings.word.weight
    without = torch.cat([table[:, :-1], torch.zeros(100, 1)], 1)
    torch.testing.assert_close((states @ table.T).softmax(-1), (states @ without.T).softmax(-1))

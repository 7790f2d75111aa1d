"""Properties of the modern body; those of both bodies are in test_networks.py."""

from dataclasses import replace

import pytest
import torch

from electrakit.config.network import NetworkConfig
from electrakit.model.networks import Discriminator, Generator
from electrakit.model.parts import rope_tables, rotate

torch.set_num_threads(1)

TINY = NetworkConfig(
    body="modern",
    vocab_size=60,
    num_layers=2,
    hidden_size=32,
    ffn_size=48,
    num_heads=2,
    embedding_size=32,
    max_length=24,
    sep_token_id=3,
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def test_scores_depend_on_the_distance_of_two_tokens_only():
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).double()
    rope = tuple(part.double() for part in rope_tables(40, 8, 10_000.0, CPU))
    queries, keys = (rotate(one.expand(1, 1, 40, 8), rope) for one in (query, key))
    scores = (queries.double() @ keys.double().mT)[0, 0]
    for distance in (-7, 0, 3):
        diagonal = scores.diagonal(distance)
        assert diagonal.max() - diagonal.min() < 1e-5
    assert scores[0].std() > 0.1


def test_rotation_keeps_length_and_leaves_position_0():
    heads = torch.randn(2, 3, 10, 8, generator=torch.Generator().manual_seed(0))
    rotated = rotate(heads, rope_tables(10, 8, 10_000.0, CPU))
    torch.testing.assert_close(rotated.norm(dim=-1), heads.norm(dim=-1))
    assert torch.equal(rotated[:, :, 0], heads[:, :, 0])


def test_rotations_stay_exact_in_a_bf16_network():
    cosine, sine = rope_tables(512, 64, 10_000.0, CPU)
    assert cosine.dtype == sine.dtype == torch.float32
    assert not list(Generator(TINY).buffers())  # nothing that .bfloat16() could round
    assert rotate(torch.ones(1, 1, 512, 64, dtype=torch.bfloat16), (cosine, sine)).dtype == torch.bfloat16


def test_there_are_no_biases_but_those_of_the_outputs():
    is_bias = [name for name in Generator(TINY).state_dict() if name.endswith("bias")]
    assert is_bias == ["output_bias"]
    assert [name for name in Discriminator(TINY).state_dict() if name.endswith("bias")] == ["score.bias"]


def test_modern_state_dict_keys_are_stable():
    """Checkpoints hold these names. The first layer has no attention norm: the embeddings are normed already."""
    parts = ("qkv", "attention_out", "ffn_norm", "ffn_in", "ffn_out")
    modules = ["embeddings.word", "embeddings.norm", *(f"layers.0.{part}" for part in parts)]
    modules += ["layers.1.attention_norm", *(f"layers.1.{part}" for part in parts), "norm"]
    body = [f"body.{module}.weight" for module in modules]
    head = ["head.dense.weight", "head.norm.weight"]
    assert list(Generator(TINY).state_dict()) == ["output_bias", *body, *head]
    assert list(Discriminator(TINY).state_dict()) == [*body, *head, "score.weight", "score.bias"]


def test_first_weights_are_modernberts_and_the_last_layer_is_glorot():
    config = replace(TINY, vocab_size=2000, hidden_size=128, embedding_size=128, ffn_size=256)
    small = 0.02 / (2 * config.num_layers) ** 0.5
    for name, parameter in (*Generator(config).named_parameters(), *Discriminator(config).named_parameters()):
        if parameter.dim() == 1:
            assert (parameter == (0 if name.endswith("bias") else 1)).all()
        elif name == "score.weight":
            assert parameter.abs().max() <= (6 / 129) ** 0.5
            assert parameter.std().item() == pytest.approx((2 / 129) ** 0.5, rel=0.2)
        else:
            sigma = small if "_out." in name or "head." in name else 0.02
            assert parameter.abs().max() <= 2 * sigma
            assert parameter.std().item() == pytest.approx(0.8796 * sigma, rel=0.1)

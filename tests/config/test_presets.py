"""Presets: the published recipes, and that all of them are found."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.config.pretrain import PretrainChanges, PretrainConfig, override
from electrakit.model.counts import estimate_memory

HOUSE = """tiny mini electra_small electra_base electra_large electra_small_owt electra_albert_generator alectra_small mlm_small
electra_15 replace_mlm all_tokens_mlm electric_small modern_tiny modern_mini modern_small deberta_mini deberta_v3_xsmall
deberta_v3_small deberta_v3_base deberta_v3_large"""


def test_an_editor_completes_every_setting_of_a_preset():
    assert get_type_hints(PretrainChanges).keys() == {entry.name for entry in fields(PretrainConfig)} | {"vocab_size"}


def test_the_table_has_every_preset_and_nothing_else():
    assert list(presets.PRESETS) == HOUSE.split()
    assert all(isinstance(preset(), PretrainConfig) and preset.__doc__ for preset in presets.PRESETS.values())


def sizes(network):
    return network.num_layers, network.hidden_size, network.ffn_size, network.num_heads, network.embedding_size


@pytest.mark.parametrize(  # the numbers of the paper and of the official code
    ("preset", "discriminator", "generator", "lr", "batch", "length", "steps", "mask"),
    [
        ("electra_small", (12, 256, 1024, 4, 128), (12, 64, 256, 1, 128), 5e-4, 128, 128, 1_000_000, 0.15),
        ("electra_base", (12, 768, 3072, 12, 768), (12, 256, 1024, 4, 768), 2e-4, 256, 512, 766_000, 0.15),
        ("electra_large", (24, 1024, 4096, 16, 1024), (24, 256, 1024, 4, 1024), 2e-4, 2048, 512, 400_000, 0.25),
        ("electra_small_owt", (12, 256, 1024, 4, 256), (3, 256, 256, 1, 256), 2e-3, 512, 128, 500_000, 0.15),
    ],
)
def test_the_published_recipes(preset, discriminator, generator, lr, batch, length, steps, mask):
    config = presets.PRESETS[preset]()
    assert sizes(config.discriminator) == discriminator and sizes(config.generator) == generator
    assert (config.optim.lr, config.batch_size, config.length, config.steps) == (lr, batch, length, steps)
    assert config.objective.mask_prob == mask and config.share == "embeddings"
    assert config.optim.warmup_steps == (40_000 if preset == "electra_small_owt" else 10_000)


def test_large_computes_activations_twice_instead_of_keeping_them():
    assert [name for name, preset in presets.PRESETS.items() if preset().recompute] == [
        "electra_large",
        "deberta_v3_large",
    ]
    kept, again = presets.electra_large(recompute=False), presets.electra_large()
    assert estimate_memory(again).activations < 0.2 * estimate_memory(kept).activations


def test_a_variant_differs_from_electra_small_in_its_one_point():
    small = presets.electra_small()
    assert override(presets.electra_15(), {"objective": {"loss_on": "all"}}) == small
    back = {"objective": {"kind": "electra"}}
    assert override(presets.replace_mlm(), back) == override(presets.all_tokens_mlm(), back) == small
    assert override(presets.electric_small(), back) == small
    assert override(presets.mlm_small(), {**back, "generator": small.generator, "steps": 1_000_000}) == small
    assert override(presets.modern_small(), {"optim": small.optim}) == presets.electra_small(body="modern")


def test_alectra_has_three_variants():
    bodies = {
        (generator, share): [network.body for network in presets.alectra_small(generator, share).networks.values()]
        for generator, share in (("bert", "embeddings"), ("albert", "embeddings"), ("albert", "encoder"))
    }
    assert list(bodies.values()) == [["bert", "albert"], ["albert", "albert"], ["albert", "albert"]]
    assert presets.alectra_small() == presets.alectra_small("albert", "embeddings")
    with pytest.raises(UserError, match=r"cannot share the encoder: generator.body is bert, discriminator.body albert"):
        presets.alectra_small("bert", "encoder")
    for wrong in ("gpt", {"num_layers": 3}, "none", None):
        with pytest.raises(UserError, match=r"choose albert or bert.*none at all, override"):
            presets.alectra_small(wrong)


def test_the_modern_body_shares_embeddings_and_keeps_the_weights_of_a_layer():
    classic, modern = presets.electra_base(), presets.electra_base(body="modern")
    assert modern.generator.hidden_size == modern.discriminator.hidden_size and modern.generator.num_layers == 4
    assert 3 * modern.discriminator.ffn_size == 2 * classic.discriminator.ffn_size
    with pytest.raises(UserError, match="choose classic, modern or deberta"):
        presets.tiny(body="bert")

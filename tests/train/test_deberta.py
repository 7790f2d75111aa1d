"""Runs with the deberta body: resuming, starting from DebertaV2 folders, word vectors from counts, the enhanced mask decoder."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import electrakit as ek
from electrakit.config.network import NetworkConfig
from electrakit.model.networks import Generator
from electrakit.train.initial_weights import fit_table
from tests.helpers.runs import begun

SIZES = {"num_layers": 2, "hidden_size": 32, "embedding_size": 32, "ffn_size": 64, "num_heads": 2, "max_length": 64}
PAIR = {"discriminator": {**SIZES, "convolution": 3}, "generator": SIZES}

UNCOUPLED = {"optim": {"warmup_steps": 2, "decoupled": False}}  # any way of sharing


def settings(**changes):
    return {
        "preset": "deberta_mini",
        "steps": 2,
        "batch_size": 2,
        "valid_rows": 2,
        "save_every": 1,
        **PAIR,
        **UNCOUPLED,
        **changes,
    }


def test_a_stopped_run_goes_on_exactly(tiny):
    whole = ek.pretrain(tiny("whole", **settings()))
    ek.pretrain(tiny("halves", **settings()), stop_after=1)
    halves = ek.pretrain(tiny("halves", **settings()))
    ours, theirs = (load_file(run.checkpoint / "model.safetensors") for run in (whole, halves))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("share", ["gdes", pytest.param("embeddings", marks=pytest.mark.long)])
def test_a_run_starts_from_deberta_folders_whose_sizes_replace_the_presets(tiny, share):
    first = ek.pretrain(tiny("first", **settings(steps=1, share=share)))
    places = {f"init_{name}": str(first.checkpoint / name) for name in ("discriminator", "generator")}
    # The preset has six layers of 128 and no convolution.
    config = tiny("second", "deberta_mini", steps=1, batch_size=2, share=share, **places, **UNCOUPLED)
    objective, reference = begun(config), begun(tiny("first", **settings(steps=1, share=share)))
    assert objective.discriminator.config.convolution == 3 and objective.generator.config.hidden_size == 32
    ids = torch.randint(5, 120, (2, 16))
    for name in ("generator", "discriminator"):
        ours, theirs = (getattr(one, name).eval()(ids) for one in (objective, reference))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    run = ek.pretrain(config)
    stored = json.loads((run.path / "config.json").read_text())["settings"]["discriminator"]
    assert (stored["convolution"], stored["num_layers"], stored["position_buckets"]) == (3, 2, 32)


@pytest.mark.parametrize(
    "share", ["gdes", *(pytest.param(name, marks=pytest.mark.long) for name in ("layers", "encoder"))]
)
def test_word_vectors_from_counts_and_every_way_of_sharing(tiny, share):
    pair = {"discriminator": SIZES, "generator": SIZES}
    run = ek.pretrain(tiny(**settings(steps=1, share=share, init_embeddings="counts", **pair)))
    assert run.step == 1


@pytest.mark.long
def test_a_generator_with_the_enhanced_mask_decoder_stays_in_the_checkpoint(tiny, tmp_path, capfd):
    generator = {**SIZES, "enhanced_mask_decoder": True}
    run = ek.pretrain(tiny(**settings(generator=generator, steps=1)))
    assert (run.checkpoint / "discriminator" / "config.json").exists() and not (run.checkpoint / "generator").exists()
    assert "generator.body.position.weight" in load_file(run.checkpoint / "model.safetensors")
    exported = ek.export(run, tmp_path / "hf")
    assert list(exported.differences) == ["discriminator"]
    assert "the generator is left out" in capfd.readouterr().err
    assert ek.pretrain(tiny(**settings(generator=generator, steps=2))).step == 2


def test_a_generator_starts_with_the_enhanced_mask_decoder_of_its_folder(tiny, tmp_path):
    config = NetworkConfig(body="deberta", vocab_size=120, enhanced_mask_decoder=True, **SIZES)
    theirs = Generator(config).eval()
    plain = Generator(replace(config, enhanced_mask_decoder=False))
    plain.load_state_dict(theirs.state_dict(), strict=False)
    ek.to_transformers(plain).save_pretrained(tmp_path / "generator")
    save_file({"weight": theirs.body.position.weight}, tmp_path / "generator" / "mask_decoder.safetensors")
    changes = {"init_generator": str(tmp_path / "generator"), "discriminator": SIZES}
    decoder = {"generator": {**SIZES, "enhanced_mask_decoder": True}}
    objective = begun(tiny("decoder", **settings(**changes, **decoder)))
    ids = torch.randint(5, 120, (2, 16))
    torch.testing.assert_close(objective.generator.eval()(ids), theirs(ids), rtol=0, atol=1e-5)
    (tmp_path / "generator" / "mask_decoder.safetensors").unlink()
    assert begun(tiny("new", **settings(**changes, **decoder))).generator.config.enhanced_mask_decoder
    assert not begun(tiny("plain", **settings(**changes))).generator.config.enhanced_mask_decoder


def test_rows_of_a_padded_table_are_cut_off_with_either_head(tiny):
    config = tiny(**settings())
    for legacy in (True, False):
        theirs = ek.to_transformers(Generator(NetworkConfig(body="deberta", vocab_size=128, **SIZES))).config
        model = transformers.DebertaV2ForMaskedLM(type(theirs)(**{**theirs.to_dict(), "legacy": legacy})).eval()
        ids = torch.randint(5, 120, (2, 9))
        before = model(ids).logits[..., :120]
        fit_table(model, 120, True, "folder", config)
        torch.testing.assert_close(ek.from_transformers(model)(ids), before, rtol=0, atol=1e-5)

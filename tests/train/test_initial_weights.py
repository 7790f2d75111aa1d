"""Runs that start from weights that exist."""

import json
import shutil

import pytest
import torch
import transformers

from electrakit import pretrain
from electrakit.common.errors import UserError
from electrakit.train import initial_weights
from electrakit.train.distributed import ProcessGroup
from tests.helpers.runs import begun


@pytest.fixture
def checkpoint(tiny):
    return pretrain(tiny("first", steps=3)).checkpoint


@pytest.mark.parametrize("preset", ["tiny", "modern_tiny", "alectra_small"])
def test_both_networks_go_on_where_the_models_were_and_are_tied(tiny, preset, capfd):
    first = pretrain(tiny("first", preset, steps=2, batch_size=2)).checkpoint
    capfd.readouterr()
    places = {"init_discriminator": str(first / "discriminator"), "init_generator": str(first / "generator")}
    # an unrelated size in the preset gives way to that of the models
    objective = begun(tiny("second", preset, **places))
    reference = begun(tiny("first", preset, steps=2, batch_size=2))
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(objective.state_dict()[name], value, rtol=0, atol=0)
    tables = [
        next(each.weight for each in network.modules() if isinstance(each, torch.nn.Embedding))
        for network in (objective.generator, objective.discriminator)
    ]
    assert tables[0] is tables[1]
    assert "different embeddings" not in capfd.readouterr().err


def test_sizes_come_from_the_model_and_a_new_generator_shares_its_embeddings(tiny, checkpoint):
    config = tiny("second", "electra_small", init_discriminator=str(checkpoint / "discriminator"), steps=2)
    run = pretrain(config)
    settings = json.loads((run.path / "config.json").read_text())["settings"]
    assert settings["discriminator"]["hidden_size"] == 64 and settings["generator"]["embedding_size"] == 32
    shutil.rmtree(checkpoint)
    longer = tiny("second", "electra_small", init_discriminator=str(checkpoint / "discriminator"), steps=3)
    assert pretrain(longer).step == 3  # the model is not needed any more


def test_a_model_for_rows_as_short_as_the_shards_is_enough_whatever_the_presets_length_is(tiny):
    short = {name: {"max_length": 32} for name in ("discriminator", "generator")}
    first = pretrain(tiny("first", steps=1, **short)).checkpoint
    places = {"init_discriminator": str(first / "discriminator"), "init_generator": str(first / "generator")}
    assert pretrain(tiny("second", length=64, steps=1, **places)).step == 1


def test_models_that_were_not_tied_are_told(tiny, checkpoint, capfd):
    other = pretrain(tiny("other", steps=1, seed=5)).checkpoint
    begun(tiny("mixed", init_discriminator=str(checkpoint / "discriminator"), init_generator=str(other / "generator")))
    assert "different embeddings" in capfd.readouterr().err


def test_another_vocabulary_is_refused(tiny, checkpoint, tmp_path):
    tokenizer = json.loads((checkpoint / "discriminator" / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    swapped = {word: {10: 11, 11: 10}.get(number, number) for word, number in words.items()}
    tokenizer["model"]["vocab"] = swapped
    (checkpoint / "discriminator" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        UserError, match=r"token 10 is .* there and .* in the shards; prepare the text with --tokenizer"
    ):
        pretrain(tiny("second", init_discriminator=str(checkpoint / "discriminator")))


def padded(place, num_rows):
    """The model in that folder, with another number of rows in its table."""
    config = transformers.AutoConfig.from_pretrained(place)
    words, replaced = initial_weights.THEIR_CLASSES[config.model_type]
    model = getattr(transformers, words if place.name == "generator" else replaced).from_pretrained(place)
    model.resize_token_embeddings(num_rows, mean_resizing=False)
    model.save_pretrained(place)


@pytest.mark.long
@pytest.mark.parametrize("preset", ["tiny", "modern_tiny", "alectra_small"])
def test_rows_of_a_padded_table_are_cut_off(tiny, preset, capfd):
    first = pretrain(tiny("first", preset, steps=2, batch_size=2)).checkpoint
    reference = begun(tiny("first", preset, steps=2, batch_size=2))
    for name in ("discriminator", "generator"):
        padded(first / name, 128)
    capfd.readouterr()
    places = {"init_discriminator": str(first / "discriminator"), "init_generator": str(first / "generator")}
    config = tiny("second", preset, **places, steps=1, batch_size=2)
    objective = begun(config)
    assert capfd.readouterr().err.count("have 128 rows, the vocabulary of") == 2
    for name, value in reference.state_dict().items():
        assert torch.equal(objective.state_dict()[name], value), name
    run = pretrain(config)
    for name in ("discriminator", "generator"):
        assert json.loads((run.checkpoint / name / "config.json").read_text())["vocab_size"] == 120


def test_a_table_that_does_not_fit_is_refused_with_a_way_out(tiny, checkpoint):
    place = checkpoint / "discriminator"
    config = tiny("second", init_discriminator=str(place))
    padded(place, 100)
    with pytest.raises(
        UserError, match=r"have 100 rows.*has 120 tokens.*resize_token_embeddings, or start from another"
    ):
        pretrain(config)
    padded(place, 128)
    for name in ("tokenizer.json", "vocab.txt"):
        (place / name).unlink()
    with pytest.raises(UserError, match=r"have 128 rows.*has 120 tokens; copy the model's tokenizer\.json into"):
        pretrain(config)


def test_places_without_a_model_are_named(tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        pretrain(tiny(init_discriminator=str(tmp_path / "empty")))
    with pytest.raises(UserError, match="this run has no generator"):
        pretrain(tiny(preset="mlm_small", init_generator=str(tmp_path / "empty")))


def test_pickled_weights_are_not_opened(tiny, checkpoint):
    folder = checkpoint / "discriminator"
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle that could run any code: .* save_pretrained"):
        pretrain(tiny("second", init_discriminator=str(folder)))


@pytest.mark.parametrize(("free", "expected"), [(1e15, 64), (0.0, 1)])
def test_the_micro_batch_follows_memory(tiny, monkeypatch, free, expected):
    monkeypatch.setattr(initial_weights, "free_memory", lambda group: free)
    assert initial_weights.choose_micro_batch(tiny(batch_size=64), ProcessGroup(torch.device("cpu"))) == expected


def test_micro_batches_are_even(tiny, monkeypatch):
    from electrakit.model.counts import estimate_memory

    config = tiny(batch_size=64, micro_batch=1)
    one = estimate_memory(config)
    room = (one.total - one.activations + 40.5 * one.activations) / initial_weights.SHARE_OF_MEMORY  # 40 rows fit
    monkeypatch.setattr(initial_weights, "free_memory", lambda group: room)
    assert initial_weights.choose_micro_batch(config, ProcessGroup(torch.device("cpu"))) == 32


def test_a_run_or_a_checkpoint_in_the_place_of_a_model_is_told_where_the_model_is(tiny, checkpoint):
    run = checkpoint.parent.parent
    for place, what in ((checkpoint, "a checkpoint"), (run, "a run")):
        for name in ("discriminator", "generator"):
            with pytest.raises(UserError) as told:
                pretrain(tiny("second", **{f"init_{name}": str(place)}))
            said = f"init_{name} is {place}: {what}, with the model inside; use --init-{name} {checkpoint / name}"
            assert str(told.value) == said


def test_recompute_is_refused_where_transformers_cannot(tiny):
    with pytest.raises(UserError, match="--recompute: transformers' AlbertForMaskedLM cannot do it; leave it out"):
        pretrain(tiny(preset="alectra_small", recompute=True))

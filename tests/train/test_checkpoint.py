"""Checkpoints: whole, verified, kept as asked, and open to transformers."""

import json

import pytest
import torch
from safetensors.torch import load_file

from electrakit import export, pretrain
from electrakit.common.errors import UserError
from electrakit.runs.files import Progress
from electrakit.train.checkpoint import Checkpoints, find_damage, write_manifest


def test_a_checkpoint_has_no_pickle_and_a_hash_for_every_file(tiny):
    run = pretrain(tiny())
    files = {path.relative_to(run.checkpoint).as_posix() for path in run.checkpoint.rglob("*") if path.is_file()}
    assert {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"} <= files
    assert {"discriminator/config.json", "discriminator/model.safetensors", "generator/model.safetensors"} <= files
    assert {name.rpartition(".")[2] for name in files} <= {"safetensors", "json", "txt"}
    assert set(json.loads((run.checkpoint / "manifest.json").read_text())["files"]) == files - {"manifest.json"}
    assert len({(run.checkpoint / name).stat().st_mode for name in files}) == 1  # whoever may read one may read all


@pytest.mark.long
@pytest.mark.parametrize("preset", ["tiny", "modern_tiny", "deberta_mini", "alectra_small", "electra_small_owt"])
def test_discriminator_and_generator_open_with_transformers_and_say_the_same(tiny, preset):
    from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_PRETRAINING_MAPPING,
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    )

    from electrakit.train.distributed import ProcessGroup
    from electrakit.train.state import TrainState

    config = tiny(preset=preset, steps=1, batch_size=2, valid_rows=2, save_every=1)
    run = pretrain(config)
    training = TrainState(config, None, ProcessGroup(torch.device("cpu")))
    objective = training.objective.eval()
    training.close()
    ids = torch.tensor([[2, 7, 9, 11, 3, 20, 21, 3, 0, 0]])
    positions = torch.arange(10)[None]
    inputs = {"attention_mask": (ids != 0).long()}
    if preset not in ("modern_tiny", "deberta_mini"):
        inputs["token_type_ids"] = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        generator = AutoModelForMaskedLM.from_pretrained(run.checkpoint / "generator").eval()
        ours = objective.generator(ids, positions)
        torch.testing.assert_close(generator(ids, **inputs).logits[:, :8], ours[:, :8], atol=1e-5, rtol=1e-4)
        theirs = AutoConfig.from_pretrained(run.checkpoint / "discriminator")
        family = (
            MODEL_FOR_PRETRAINING_MAPPING if theirs.model_type == "electra" else MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        )
        logits = family[type(theirs)].from_pretrained(run.checkpoint / "discriminator").eval()(ids, **inputs).logits
        logits = logits[..., 1] - logits[..., 0] if logits.ndim == 3 else logits
        torch.testing.assert_close(logits[:, :8], objective.discriminator(ids)[:, :8], atol=1e-5, rtol=1e-4)
    assert AutoTokenizer.from_pretrained(run.checkpoint / "discriminator").mask_token_id == 4


def test_tied_weights_are_written_once_and_are_tied_when_read_again(tiny):
    from electrakit.train.distributed import ProcessGroup
    from electrakit.train.state import TrainState

    run = pretrain(tiny(), stop_after=5)
    names = set(load_file(run.checkpoint / "model.safetensors"))
    assert sum(name.endswith("embeddings.word.weight") for name in names) == 1
    training = TrainState(tiny(), None, ProcessGroup(torch.device("cpu")))
    training.close()
    generator, discriminator = training.objective.generator, training.objective.discriminator
    assert generator.body.embeddings.word.weight is discriminator.body.embeddings.word.weight
    averages = load_file(run.checkpoint / "optimizer.safetensors")
    assert sum(name.endswith("embeddings.word.weight") for name in averages) == 3  # its two averages and its count


@pytest.mark.promise("Training", "flipped bit in a file of a checkpoint", "noticed, the checkpoint before is used")
@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.json", "discriminator/config.json"]
)
def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_taken(tiny, name, capfd):
    config = tiny(valid_every=100)
    whole = pretrain(tiny("whole", valid_every=100))
    stopped = pretrain(config, stop_after=10)
    path = stopped.checkpoint / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert name in (find_damage(stopped.checkpoint) or "")
    run = pretrain(config)
    said = capfd.readouterr().err
    assert "step_0000010 is damaged" in said and "Resuming from" in said and "step_0000005" in said
    assert all(
        torch.equal(value, load_file(whole.checkpoint / "model.safetensors")[key])
        for key, value in load_file(run.checkpoint / "model.safetensors").items()
    )


@pytest.mark.promise("Training", "checkpoint without a usable manifest", "passed over")
def test_a_missing_or_strange_manifest_is_damage(tmp_path):
    assert "manifest.json" in (find_damage(tmp_path) or "")
    (tmp_path / "manifest.json").write_text("[]")
    assert find_damage(tmp_path) == "manifest.json cannot be read"
    (tmp_path / "manifest.json").write_text('{"format": 99, "files": {}}')
    with pytest.raises(UserError, match="has format 99, we read 1: update electrakit"):
        find_damage(tmp_path)


@pytest.mark.promise("Training", "checkpoint's file is neither safetensors nor JSON, with hashes that fit", "one line")
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("content", [b"no such file", b"[]", b"\xff" * 100])
def test_a_file_of_another_kind_with_a_manifest_that_fits_is_one_line(tiny, tmp_path, name, content):
    run = pretrain(tiny(steps=2, save_every=2, valid_rows=1))
    (run.checkpoint / name).write_bytes(content)
    (run.checkpoint / "manifest.json").unlink()
    write_manifest(run.checkpoint)
    with pytest.raises(UserError, match=rf"{name} is .*; remove .*step_0000002, and the checkpoint before it is used"):
        pretrain(tiny(steps=3, save_every=2, valid_rows=1))
    if name != "optimizer.safetensors":
        with pytest.raises(UserError, match=rf"{name} is .*"):
            export(run, tmp_path / "exported")


@pytest.mark.promise("Training", "damaged checkpoints", "good ones are kept")
def test_damaged_checkpoints_are_no_reason_to_drop_good_ones(tiny):
    settings = {"steps": 8, "save_every": 2, "valid_every": 100, "valid_rows": 1}
    config = tiny(**settings)
    run = pretrain(config, stop_after=6)
    assert Checkpoints(run.path, 2, []).steps() == [4, 6]
    (run.path / "checkpoints" / "step_0000006" / "manifest.json").unlink()
    assert pretrain(tiny(**settings, keep_last=1), stop_after=5).checkpoint.exists()
    for path in (run.path / "checkpoints").glob("step_*"):
        (path / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"all checkpoints in .* are damaged; remove that folder"):
        pretrain(config)
    assert run.metrics()


def test_a_damaged_checkpoint_is_none_of_the_last(tiny):
    settings = {"steps": 20, "save_every": 2, "keep_last": 2, "valid_every": 100, "valid_rows": 1}
    run = pretrain(tiny(**settings), stop_after=9)
    checkpoints = Checkpoints(run.path, 2, [])
    assert checkpoints.steps() == [8, 9]
    path = run.checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    pretrain(tiny(**settings), stop_after=10)
    assert checkpoints.steps() == [8, 10]
    assert all(find_damage(checkpoints.path(step)) is None for step in checkpoints.steps())


@pytest.mark.promise("Training", "run of an older version", "resumed")
def test_a_run_of_an_older_version_is_resumed(tiny):
    """It knew fewer settings, and fewer things about its progress."""
    run = pretrain(tiny(), stop_after=5)
    stored = json.loads((run.path / "config.json").read_text())
    del stored["settings"]["wandb"], stored["settings"]["optim"]["num_cycles"], stored["data"]["tokenizer_file"]
    (run.path / "config.json").write_text(json.dumps(stored))
    state = json.loads((run.checkpoint / "state.json").read_text())
    del state["num_returns"], state["milestones"]
    (run.checkpoint / "state.json").write_text(json.dumps({**state, "from_the_future": 1}))
    (run.checkpoint / "manifest.json").unlink()
    write_manifest(run.checkpoint)
    assert pretrain(tiny()).is_complete


@pytest.mark.long
def test_the_last_ones_the_milestones_and_the_best_are_kept(tiny):
    run = pretrain(tiny(steps=16, save_every=2, keep_last=2, keep_at=("6.25%", "25%", "100%"), valid_every=100))
    steps = Checkpoints(run.path, 2, []).steps()
    assert steps == [1, 4, 14, 16]


@pytest.mark.long
def test_a_milestone_is_kept_whatever_later_starts_say(tiny):
    settings = {"save_every": 2, "keep_last": 1, "valid_every": 100, "valid_rows": 1}
    run = pretrain(tiny(steps=10, keep_at=("50%",), **settings), stop_after=8)
    assert Checkpoints(run.path, 1, []).steps() == [5, 8]
    pretrain(tiny(steps=14, keep_at=("50%",), **settings), stop_after=8)  # half of it is now 7
    assert Checkpoints(run.path, 1, []).steps() == [5, 8]
    pretrain(tiny(steps=16, keep_at=("62.5%",), **settings), stop_after=11)
    assert Checkpoints(run.path, 1, []).steps() == [5, 10, 11]
    pretrain(tiny(steps=16, **settings))
    assert Checkpoints(run.path, 1, []).steps() == [5, 10, 16]


def test_a_checkpoint_that_becomes_a_milestone_stays_one(tiny):
    settings = {"save_every": 2, "keep_last": 2, "valid_every": 100, "valid_rows": 1}
    run = pretrain(tiny(steps=6, **settings), stop_after=4)
    pretrain(tiny(steps=8, keep_at=("25%",), **settings), stop_after=6)
    pretrain(tiny(steps=10, **settings))
    assert Checkpoints(run.path, 1, []).steps() == [2, 8, 10]


def test_the_best_is_kept_however_old(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1, [])
    for step in (2, 4, 6):
        checkpoints.path(step).mkdir(parents=True)
        write_manifest(checkpoints.path(step))
    checkpoints.prune(Progress(step=6, best_step=2, best_loss=1.0))
    assert checkpoints.steps() == [2, 6]

"""What identifies a run, and what may change about it."""

import json
import os
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest

from electrakit import presets, pretrain
from electrakit.common.errors import UserError
from electrakit.config.pretrain import PretrainConfig, override, with_special_ids
from electrakit.runs.files import PretrainRun, read_metrics
from electrakit.runs.settings import (
    DataDescription,
    StoredConfig,
    StoredSettings,
    check_fits,
    differences,
    identity_of,
    read_config,
    readable_settings,
    write_config,
)
from electrakit.train.initial_weights import describe_data


def test_no_setting_of_a_part_has_the_name_of_another():
    """StoredSettings reads those of the objective and the optimizer beside the others."""
    kinds = (PretrainConfig, type(PretrainConfig().objective), type(PretrainConfig().optim))
    names = [entry.name for kind in kinds for entry in fields(kind)]
    assert not [entry.name for entry in fields(StoredSettings) if names.count(entry.name) > 1]


def test_differences_are_named_by_their_place_and_what_may_change_is_not():
    before = {"seed": 1, "optim": {"lr": 0.1, "name": "lamb"}, "generator": None}
    now = {"seed": 1, "optim": {"lr": 0.2, "name": "lamb"}, "generator": {"body": "classic"}}
    assert differences(before, now) == ["optim.lr 0.1 -> 0.2", "generator None -> {'body': 'classic'}"]
    data = DataDescription()
    stored = StoredConfig(presets.tiny(data="here", steps=10), data, 1, frozenset())
    check_fits(Path("run"), stored, presets.tiny(data="there", steps=20, fsdp=True, compile=True), data)
    with pytest.raises(UserError, match=r"run was started with other settings: seed 0 -> 3, optim\.lr 0\.002 -> 0\.1;"):
        check_fits(Path("run"), stored, presets.tiny(seed=3, optim={"lr": 0.1}), data)


def test_what_a_run_may_be_resumed_with():
    """What decides when and where things are written, or how fast: not what is learned."""
    may_change = "run data steps budget micro_batch compile plain deterministic recompute fsdp log_every valid_every"
    may_change += " save_every save_minutes keep_last keep_at on_checkpoint wandb"
    assert PretrainConfig.changeable() == set(may_change.split())


def test_shards_are_known_by_content_wherever_they_lie(shards, tmp_path, tiny):
    moved = shutil.copytree(shards, tmp_path / "moved")
    assert describe_data(moved) == describe_data(shards)
    write_config(tmp_path, tiny(), describe_data(shards), 1)
    check_fits(tmp_path, read_config(tmp_path), tiny(), describe_data(moved))
    other = replace(describe_data(shards), tokenizer="another")
    with pytest.raises(UserError, match="tokenizer wordpiece with 120 tokens -> another wordpiece with 120 tokens;"):
        check_fits(tmp_path, read_config(tmp_path), tiny(), other)


def test_another_tokenizer_beside_the_same_rows_is_refused(shards, tmp_path, tiny):
    moved = shutil.copytree(shards, tmp_path / "moved")
    config = override(tiny(), {"data": moved})
    pretrain(config, stop_after=2)
    path = moved / "tokenizer" / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    one, other = list(words)[-2:]
    words[one], words[other] = words[other], words[one]
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="tokenizer wordpiece with 120 tokens -> another wordpiece with 120 tokens;"):
        pretrain(config)


def test_a_tokenizer_of_another_kind_is_named_without_what_follows_from_it(shards, tmp_path, tiny):
    write_config(tmp_path, override(tiny(), {"vocab_size": 120}), describe_data(shards), 1)
    changes = {"tokenizer": "x", "tokenizer_kind": "unigram", "vocab_size": 8000, "files": {"train-00000.bin": "y"}}
    now = replace(describe_data(shards), **changes)
    config = with_special_ids(override(tiny(seed=3), {"vocab_size": 8000}), {"pad": 7, "sep": 8})
    with pytest.raises(UserError) as error:
        check_fits(tmp_path, read_config(tmp_path), config, now)
    wanted = "tokenizer wordpiece with 120 tokens -> unigram with 8,000 tokens, seed 0 -> 3;"
    assert f"{tmp_path} was started with other settings: {wanted}" in str(error.value)


def test_a_run_of_an_older_version_is_resumed_and_keeps_its_identity(shards, tmp_path, tiny):
    write_config(tmp_path, tiny(), describe_data(shards), 1)
    newer = identity_of(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    del stored["data"]["tokenizer_kind"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert identity_of(tmp_path) == newer
    check_fits(tmp_path, read_config(tmp_path), tiny(), describe_data(shards))
    with pytest.raises(UserError, match="tokenizer one with 120 tokens -> wordpiece with 120 tokens;"):
        check_fits(tmp_path, read_config(tmp_path), tiny(), replace(describe_data(shards), tokenizer="another"))


def test_settings_stand_in_config_json_as_they_were_resolved(tmp_path, tiny, shards):
    write_config(tmp_path, tiny(), describe_data(shards), 2)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["settings"] == tiny().to_json() and stored["processes"] == 2
    assert PretrainConfig.from_file(tmp_path / "config.json") == tiny()


def test_settings_of_another_version_are_read_as_far_as_they_are_known(tiny):
    stored = tiny().to_json()
    newer = {**stored, "unknown": 1, "optim": {**stored["optim"], "unknown": 2}}
    assert readable_settings(newer) == tiny()
    del newer["seed"]
    assert readable_settings(newer).seed == 0
    assert readable_settings({"discriminator": 3}) is None


def test_a_resumed_run_keeps_its_identity(tmp_path, tiny, shards):
    write_config(tmp_path, tiny(), describe_data(shards), 1)
    before = identity_of(tmp_path)
    write_config(tmp_path, tiny(steps=99), describe_data(shards), 2)
    assert identity_of(tmp_path) == before
    write_config(tmp_path, tiny(seed=1), describe_data(shards), 1)
    assert identity_of(tmp_path) != before


def test_a_run_is_a_path(tmp_path):
    run = PretrainRun(tmp_path, 12, True)
    assert os.fspath(run) == str(tmp_path)
    assert run.checkpoint == tmp_path / "checkpoints" / "step_0000012"
    assert read_metrics(tmp_path) == []


def test_the_status_is_that_of_this_start(tiny):
    def status():
        return json.loads((tiny().run / "status.json").read_text())

    pretrain(tiny())
    assert status() == {"step": 12, "is_complete": True}
    seen = []
    pretrain(tiny(steps=14), on_checkpoint=lambda path: seen.append(status()))
    assert seen == [{"step": 12, "is_complete": False}]
    with pytest.raises(UserError, match="seed 0 -> 1"):
        pretrain(tiny(seed=1))
    assert status() == {"step": 14, "is_complete": True}  # a start that is refused is none

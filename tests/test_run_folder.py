"""What identifies a run, and what may change about it."""

import json
import os
import shutil

import pytest

from electrakit import pretrain
from electrakit.errors import UserError
from electrakit.pretrain_config import load_config, override, to_json
from electrakit.train.run_folder import (
    Run,
    check_fits,
    describe_data,
    differences,
    read_config,
    read_metrics,
    write_config,
)


def test_differences_are_named_by_their_place_and_what_may_change_is_not():
    before = {"seed": 1, "steps": 10, "optim": {"lr": 0.1, "name": "lamb"}, "generator": None}
    now = {"seed": 1, "steps": 20, "optim": {"lr": 0.2, "name": "lamb"}, "generator": {"body": "classic"}}
    assert differences(before, now) == ["optim.lr 0.1 -> 0.2", "generator None -> {'body': 'classic'}"]


def test_shards_are_known_by_content_wherever_they_lie(shards, tmp_path, tiny):
    moved = shutil.copytree(shards, tmp_path / "moved")
    assert describe_data(moved) == describe_data(shards)
    write_config(tmp_path, tiny(), describe_data(shards), 1)
    check_fits(tmp_path, read_config(tmp_path), tiny(), describe_data(moved))
    other = json.loads(json.dumps(describe_data(shards)))
    other["tokenizer"] = "another"
    with pytest.raises(UserError, match=r"data\.tokenizer"):
        check_fits(tmp_path, read_config(tmp_path), tiny(), other)


def test_another_tokenizer_beside_the_same_rows_is_refused(shards, tmp_path, tiny):
    moved = shutil.copytree(shards, tmp_path / "moved")
    config = override(tiny(), {"data": moved})
    pretrain(config, stop_after=2)
    path = moved / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace('"[MASK]": 4', '"[MASK]": 5', 1).replace('"[UNK]": 1', '"[UNK]":  1'))
    with pytest.raises(UserError, match=r"data\.tokenizer_file \w+ -> \w+"):
        pretrain(config)


def test_settings_stand_in_config_json_as_they_were_resolved(tmp_path, tiny, shards):
    write_config(tmp_path, tiny(), describe_data(shards), 2)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["settings"] == to_json(tiny()) and stored["processes"] == 2
    assert load_config(tmp_path / "config.json") == tiny()


def test_a_run_is_a_path(tmp_path):
    run = Run(tmp_path, 12, True)
    assert os.fspath(run) == str(tmp_path)
    assert run.checkpoint == tmp_path / "checkpoints" / "step_0000012"
    assert read_metrics(tmp_path / "metrics.jsonl") == []


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

"""Shard files that another program changes while they are read: told in one line, never a signal, never other rows unnoticed."""

import os
import pickle
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from electrakit import pretrain
from electrakit.common.errors import UserError
from electrakit.data.batches import Batches
from electrakit.data.row_file import allow_open_files
from electrakit.runs import layout
from tests.helpers.tiny_shards import write_rows

ROWS = np.arange(5, 5 + 40 * 8).reshape(40, 8)


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    found = Batches(write_rows(tmp_path / "shards", 400, train=[ROWS[:25], ROWS[25:]]), 40, shuffle=False)
    assert np.array_equal(found(0), ROWS)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shards" / "train-00001.bin"


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\x07\x00" * 8)


def test_a_file_that_is_cut_off_is_told(batches, path):
    os.truncate(path, 40)
    with pytest.raises(UserError, match=r"train-00001.bin was cut off while it was read: copy the folder again"):
        batches(0)
    assert batches.find_change() == f"{path} has 40 bytes instead of 240"


def test_other_bytes_in_place_are_noticed_whatever_the_times_say(batches, path):
    before = path.stat()
    overwrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as cp -p does
    assert batches.find_change() == f"{path} has other content than its manifest says"


def test_ids_beyond_the_vocabulary_never_reach_a_network(batches, path):
    with path.open("r+b") as file:
        file.write(b"\xff\xff" * 8)
    with pytest.raises(
        UserError, match=r"train-00001.bin has other content than its manifest says: copy the folder again"
    ):
        batches(0)


def test_new_times_alone_are_no_change_and_a_file_in_its_place_is_not_read(batches, path):
    assert batches.find_change() is None
    path.touch()
    assert batches.find_change() is None
    other = path.with_name("other")
    shutil.copy(path, other)
    overwrite(other)
    other.replace(path)
    assert batches.find_change() is None and np.array_equal(batches(0), ROWS)


def test_a_folder_that_is_removed_can_still_be_read(batches, path):
    shutil.rmtree(path.parent)
    assert np.array_equal(batches(0), ROWS) and batches.find_change() is None


def test_another_process_opens_the_files_itself(batches):
    assert np.array_equal(pickle.loads(pickle.dumps(batches))(0), ROWS)


def test_many_shards_raise_the_limit_of_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        allow_open_files(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (356, before[1])
        allow_open_files(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (356, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.promise(
    "Training", "shards overwritten or cut off while training", "no checkpoint of other rows, one line"
)
@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("how", ["overwritten", "cut off"])
def test_a_run_does_not_save_what_it_learned_from_changed_shards(tiny, tmp_path, split, how):
    config = tiny(valid_every=100, save_every=5)
    moved = shutil.copytree(config.data, tmp_path / "shards")
    config = config.changed(data=moved)

    def change(_: Path) -> None:
        path = moved / f"{split}-00000.bin"
        overwrite(path) if how == "overwritten" else os.truncate(path, 100)

    with pytest.raises(UserError, match=r"while training\. The last checkpoint is from before that|was cut off while"):
        pretrain(config, on_checkpoint=change)
    assert layout.checkpoint_steps(config.run) == [5]


@pytest.mark.promise("Training", "shards removed or made anew while training", "the same rows and tokenizer to the end")
def test_shards_that_are_made_anew_while_a_run_trains_leave_it_its_rows_and_its_tokenizer(tiny, tmp_path):
    config = tiny(valid_every=100, save_every=5)
    before = {path.name: path.read_bytes() for path in (config.data / "tokenizer").iterdir()}
    shards = shutil.copytree(config.data, tmp_path / "shards")

    def make_anew(_: Path) -> None:
        shutil.rmtree(shards)
        (shards / "tokenizer").mkdir(parents=True)
        (shards / "tokenizer" / "vocab.txt").write_text("of another corpus")

    run = pretrain(config.changed(data=shards), on_checkpoint=make_anew)
    assert run.is_complete
    for network in ("discriminator", "generator"):
        assert {name: (run.checkpoint / network / name).read_bytes() for name in before} == before

"""Batches: each row once per epoch, the same order on any number of workers, and damage is named before it is read."""

import json
import multiprocessing
import pickle
from itertools import pairwise
from math import factorial
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit.common.errors import UserError
from electrakit.data.batches import Batches, permute

LENGTH = 8
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


def write_shards(folder: Path, dtype: str = "uint16", first_id: int = 100, **rows_of_files: list[int]) -> Path:
    """A shards folder; row r of each split is first_id + r, then row numbers again, so a row tells its own number."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {}
    for split, counts in rows_of_files.items():
        files = []
        for number, (first, end) in enumerate(pairwise(np.cumsum([0, *counts]).tolist())):
            rows = np.arange(first, end)[:, None] + first_id + np.arange(LENGTH)  # (rows, T)
            data = rows.astype(np.dtype(dtype).newbyteorder("<")).tobytes()
            name = f"{split}-{number:05}.bin"
            (folder / name).write_bytes(data)
            files.append({"name": name, "rows": end - first, "xxh3_128": xxhash.xxh3_128_hexdigest(data)})
        splits[split] = {"rows": sum(counts), "files": files}
    vocab_size = 8000 if dtype == "uint16" else 2**32
    manifest = {"format": 1, "length": LENGTH, "dtype": dtype, "vocab_size": vocab_size, "special_ids": SPECIAL}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "splits": splits}))
    return folder


def change_manifest(folder: Path, **changes: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards", train=[60, 1, 39], valid=[7], test=[])


# The permutation


@given(size=st.integers(1, 5000), key=st.integers(-(2**70), 2**140))
@settings(max_examples=150, deadline=None)
def test_permute_is_a_bijection(size, key):
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


def test_permute_is_a_bijection_of_every_small_size():
    for size in range(1, 300):
        assert set(permute(np.arange(size), size, key=size).tolist()) == set(range(size))


@given(size=st.integers(1, 2**40), key=st.integers(0, 2**64), data=st.data())
@settings(max_examples=100, deadline=None)
def test_permute_of_a_huge_range_stays_inside_and_apart_and_needs_no_neighbours(size, key, data):
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=50)), dtype=np.int64)
    moved = permute(index, size, key)
    assert moved.dtype == np.int64 and moved.shape == index.shape
    assert ((moved >= 0) & (moved < size)).all() and len(set(moved.tolist())) == len(index)
    assert moved.tolist() == [int(permute(np.array(one), size, key)) for one in index]


def test_permute_refuses_an_index_outside_the_range():
    for outside in (-1, 10):
        with pytest.raises(AssertionError, match=r"index outside range\(10\)"):
            permute(np.array([outside]), 10, key=0)


def test_permute_is_the_one_that_old_runs_used():
    """If this fails, the order of the data has changed: raise batches.ORDER, and say so in docs/log.md."""
    assert permute(np.arange(10), 10, key=1).tolist() == [4, 1, 0, 7, 8, 2, 3, 9, 6, 5]
    assert permute(np.arange(5), 1_000_003, key=1).tolist() == [531406, 162201, 876949, 579629, 813477]
    assert permute(np.arange(2**40 - 3, 2**40), 2**40, key=7 << 64 | 3).tolist() == [
        664675862466,
        1036576444326,
        838171083552,
    ]


def deviation(counts: np.ndarray) -> float:
    """Chi-square against equal counts, in standard deviations from what chance gives."""
    cells, expected = counts.size, counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - (cells - 1)) / (2 * (cells - 1)) ** 0.5)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 7, 16, 100, 257, 1000])
def test_over_many_keys_the_first_row_and_the_step_to_the_next_are_uniform(size):
    pairs = np.array([permute(np.arange(2), size, key) for key in range(3000)])
    assert deviation(np.bincount(pairs[:, 0], minlength=size)) < 4.5
    if size > 2:
        assert deviation(np.bincount((pairs[:, 1] - pairs[:, 0]) % size, minlength=size)[1:]) < 4.5


def test_all_orders_of_four_rows_are_equally_likely():
    orders, counts = np.unique([permute(np.arange(4), 4, key) for key in range(3000)], axis=0, return_counts=True)
    assert len(orders) == factorial(4) and deviation(counts) < 4.5


@pytest.mark.parametrize("size", [64, 300, 1000, 30_000])
def test_neighbours_are_not_correlated(size):
    orders = [permute(np.arange(size), size, key) for key in range(40)]
    for lag in (1, 2, 50):
        correlations = [np.corrcoef(order[:-lag], order[lag:])[0, 1] for order in orders]
        assert abs(np.mean(correlations) + 1 / size) < 4.5 / (40 * (size - lag)) ** 0.5


def test_epochs_differ_as_chance_would_have_it(tmp_path):
    batches = Batches(write_shards(tmp_path, train=[400]), batch_size=400, seed=5)
    epochs = np.array([batches.row_numbers(step) for step in range(60)])
    num_equal = [(one == other).sum() for one, other in pairwise(epochs)]
    assert 0.5 < np.mean(num_equal) < 1.6  # 1 expected, whatever the size
    assert abs(np.mean([np.corrcoef(one, other)[0, 1] for one, other in pairwise(epochs)])) < 4.5 / (59 * 400) ** 0.5


# The batches

layouts = st.fixed_dictionaries(
    {
        "counts": st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any),
        "batch_size": st.integers(1, 80),
        "world_size": st.integers(1, 7),
        "micro_batch": st.none() | st.integers(1, 20),
        "seed": st.integers(-5, 2**40),
    }
)


@given(layout=layouts)
@settings(max_examples=40, deadline=None)
def test_each_row_comes_once_per_epoch_for_any_workers_files_and_micro_batches(layout, tmp_path_factory):
    counts, batch_size, seed, micro_batch = (layout[key] for key in ("counts", "batch_size", "seed", "micro_batch"))
    world_size, num_rows = min(layout["world_size"], batch_size), sum(counts)
    shards = write_shards(tmp_path_factory.mktemp("shards"), train=counts)
    workers = [
        Batches(shards, batch_size, seed=seed, rank=rank, world_size=world_size, micro_batch=micro_batch)
        for rank in range(world_size)
    ]
    alone, seen, num_epochs = Batches(shards, batch_size, seed=seed), [], 3
    for step in range(-(-num_epochs * num_rows // batch_size)):
        micro_batches = [list(worker.micro_batches(step)) for worker in workers]
        for worker, own in zip(workers, micro_batches, strict=True):
            assert len(own) == worker.num_micro and max(map(len, own)) <= (micro_batch or batch_size)
            assert np.array_equal(np.concatenate(own), worker(step))
            assert max(map(len, own)) - min(map(len, own)) <= 1
        assert len(set(map(len, micro_batches))) == 1  # or workers would wait for each other forever
        batch = np.concatenate([each for own in micro_batches for each in own])
        assert np.array_equal(batch, alone(step))  # the same rows in the same order as one worker's
        assert np.array_equal(batch - np.arange(LENGTH) - 100, alone.row_numbers(step)[:, None] + np.zeros(LENGTH))
        seen += alone.row_numbers(step).tolist()
    for epoch in range(num_epochs):
        assert sorted(seen[epoch * num_rows : (epoch + 1) * num_rows]) == list(range(num_rows))
    assert {worker.fingerprint for worker in workers} == {alone.fingerprint}


def test_uneven_workers_and_micro_batches_are_as_even_as_can_be_and_weights_add_up(shards):
    workers = [Batches(shards, 22, rank=rank, world_size=4, micro_batch=4) for rank in range(4)]
    sizes = [[len(ids) for ids in worker.micro_batches(3)] for worker in workers]
    assert sizes == [[2, 3], [3, 3], [2, 3], [3, 3]] and [worker.num_micro for worker in workers] == [2] * 4
    assert sum(size / 22 for own in sizes for size in own) == pytest.approx(1)


def test_random_access_equals_sequential(shards):
    sequential = Batches(shards, 17)
    in_order = [sequential(step) for step in range(30)]
    for step in (29, 3, 11, 0):
        assert np.array_equal(Batches(shards, 17)(step), in_order[step])


def test_what_comes_out(shards):
    batches = Batches(str(shards), 16)
    ids = batches(0)
    assert ids.dtype == np.int64 and ids.shape == (16, LENGTH) and ids.flags.writeable and ids.flags.c_contiguous
    assert (batches.num_rows, batches.length, batches.vocab_size, batches.special_ids) == (100, LENGTH, 8000, SPECIAL)
    assert batches.steps_per_epoch == 6.25 and batches.manifest.dtype == "uint16" and batches.num_micro == 1
    assert Batches(shards, 2, split="valid").num_rows == 7


def test_uint32_keeps_large_ids(tmp_path):
    ids = Batches(write_shards(tmp_path, dtype="uint32", first_id=3_000_000_000, train=[20]), 20)(0)
    assert sorted(ids[:, 0].tolist()) == list(range(3_000_000_000, 3_000_000_020))


def test_without_shuffle_rows_come_in_order(shards):
    batches = Batches(shards, 64, shuffle=False)
    assert batches.row_numbers(0).tolist() == list(range(64))
    assert batches.row_numbers(1).tolist() == [*range(64, 100), *range(28)]


def test_a_batch_larger_than_the_split_spans_epochs(shards):
    batches = Batches(shards, 18, split="valid")
    rows = np.concatenate([batches.row_numbers(step) for step in range(7)])
    assert batches(0).shape == (18, LENGTH) and (np.bincount(rows) == 18).all()
    assert len(set(batches.sample_numbers(0))) == 18


@pytest.mark.parametrize("step", [10**12, np.int64(10**12)])
def test_a_far_step_does_not_overflow(shards, step):
    batches = Batches(shards, 10**8, rank=10**7 - 1, world_size=10**7)
    assert batches.sample_numbers(step) == range(10**20 + 10**8 - 10, 10**20 + 10**8)
    assert len(set(batches(step)[:, 0].tolist())) == 10


def test_seeds_give_different_orders(shards):
    orders = {tuple(Batches(shards, 100, seed=seed).row_numbers(0).tolist()) for seed in range(-3, 30)}
    assert len(orders) == 33


def test_fingerprint_changes_with_what_changes_the_ids(shards, tmp_path):
    more = write_shards(tmp_path / "more", train=[60, 1, 40])
    other = write_shards(tmp_path / "other", first_id=101, train=[60, 1, 39])
    same = write_shards(tmp_path / "same", train=[60, 1, 39])
    fingerprint = Batches(shards, 4).fingerprint
    assert Batches(same, 4, micro_batch=2, rank=1, world_size=3, verify=False).fingerprint == fingerprint
    variants = [Batches(shards, 5), Batches(shards, 4, seed=1), Batches(shards, 4, shuffle=False), Batches(more, 4)]
    variants += [Batches(shards, 4, split="valid"), Batches(other, 4)]
    assert len({fingerprint, *(batches.fingerprint for batches in variants)}) == 7


def test_another_process_reads_the_same(shards):
    batches = Batches(shards, 32, seed=9)
    here = batches(3)
    assert len(pickle.dumps(batches)) < 4000  # the settings, not the rows
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.apply(batches, (3,)), here)


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, r"batch_size is 0: use 1 or more"),
        ({"micro_batch": 0}, r"micro_batch is 0: use 1 or more, or None"),
        ({"world_size": 0}, r"world_size is 0: use 1 or more"),
        ({"rank": 2, "world_size": 2}, r"rank is 2, world_size 2: use a rank from 0 to 1"),
        ({"rank": -1}, r"rank is -1, world_size 1: use a rank from 0 to 0"),
        ({"world_size": 5}, r"batch_size is 4 for 5 processes: use a row each, or fewer processes"),
        ({"split": "dev"}, r"no split 'dev': choose one of train, valid, test"),
        ({"split": "test"}, r"split 'test' of .* has 0 rows: prepare more text"),
    ],
)
def test_settings_that_cannot_be_are_named(shards, settings, message):
    with pytest.raises(UserError, match=message) as error:
        Batches(shards, **{"batch_size": 4, **settings})
    assert "\n" not in str(error.value)


def test_a_step_before_the_first_is_refused(shards):
    with pytest.raises(UserError, match="step is -1: steps count from 0"):
        Batches(shards, 4)(-1)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "unfinished: run electra prepare again to finish it"),
        (lambda folder: cut(folder / "manifest.json"), r"manifest.json is damaged \(.*\): copy the folder again"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe\n{"), r"manifest.json is damaged"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "has format None, we read 1"),
        (lambda folder: change_manifest(folder, format=2), "has format 2, we read 1: update electrakit"),
        (lambda folder: change_manifest(folder, dtype="int8"), "has dtype 'int8', known are uint16, uint32"),
        (lambda folder: (folder / "train-00001.bin").unlink(), "train-00001.bin is missing: copy the folder again"),
        (lambda folder: cut(folder / "train-00002.bin"), r"train-00002.bin is truncated \(623 bytes, .* says 624\)"),
        (lambda folder: lengthen(folder / "train-00002.bin"), r"train-00002.bin is too long \(625 bytes, .* 624\)"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_at_once(shards, harm, message):
    harm(shards)
    with pytest.raises(UserError, match=message) as error:
        Batches(shards, 4, verify=False)
    assert "\n" not in str(error.value) and str(shards) in str(error.value)


def test_a_missing_folder_a_missing_key_and_a_wrong_count_are_named(shards, tmp_path):
    with pytest.raises(UserError, match=r"no shards folder .*/nowhere: make it with electra prepare"):
        Batches(tmp_path / "nowhere", 4)
    manifest = json.loads((shards / "manifest.json").read_text())
    manifest["splits"]["train"]["rows"] = 99
    (shards / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"damaged \(split 'train' has 99 rows, its files 100\)"):
        Batches(shards, 4)
    del manifest["splits"], manifest["length"]
    (shards / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"manifest.json lacks length, splits"):
        Batches(shards, 4)


def test_one_flipped_bit_is_found_before_the_first_read(shards):
    path = shards / "train-00002.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    batches = Batches(shards, 4)  # opens nothing yet
    for _ in range(2):  # and not only once
        with pytest.raises(
            UserError, match=r"train-00002.bin is damaged \(xxh3_128 \w{32}, the manifest says \w{32}\)"
        ):
            batches(0)
    assert Batches(shards, 4, verify=False)(0).shape == (4, LENGTH)
    assert Batches(shards, 4, split="valid")(0).shape == (4, LENGTH)  # only what is read is verified

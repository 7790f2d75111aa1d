"""Flipped bits, cuts and deletions of every file of a checkpoint, of shards and of a log: noticed, or harmless."""

import contextlib
import json
import random
import shutil

import pytest

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.data.manifest import check_files, read_manifest
from electrakit.data.tokenizer_files import load_tokenizer
from electrakit.train.checkpoint import find_damage
from electrakit.train.initial_weights import check_tokenizer, describe_data

DAMAGES = ("flip", "cut", "delete")


def files_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def damage(path, how, chance):
    """One file, in place."""
    content = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: chance.randrange(len(content))])
    else:
        place = chance.randrange(len(content))
        content[place] ^= 1 << chance.randrange(8)
        path.write_bytes(content)


@pytest.fixture(scope="module")
def run(shards, tmp_path_factory):
    sizes = {"length": 32, "vocab_size": 120, "batch_size": 4, "steps": 2, "save_every": 2, "valid_rows": 2}
    return ek.pretrain(ek.presets.tiny(data=shards, run=tmp_path_factory.mktemp("damage") / "run", **sizes))


@pytest.mark.promise("Training", "flip, cut or deletion of every file of a checkpoint", "noticed")
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_to_any_file_of_a_checkpoint_is_noticed(run, tmp_path, how, trials):
    """A byte of the manifest that is only white space may change unnoticed: what it says is the same."""
    names = files_of(run.checkpoint)
    assert len(names) >= 12
    said = json.loads((run.checkpoint / "manifest.json").read_text())
    for seed in trials:
        chance = random.Random(f"{how} {seed}")
        for name in names:
            shutil.copytree(run.checkpoint, tmp_path / "copy")
            damage(tmp_path / "copy" / name, how, chance)
            if find_damage(tmp_path / "copy") is None:
                assert name.name == "manifest.json" and json.loads((tmp_path / "copy" / name).read_text()) == said
            shutil.rmtree(tmp_path / "copy")
        trials.count(len(names) - 1)


@pytest.mark.promise("Data", "flip, cut or deletion of every file of shards", "refused before training, by name")
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_to_any_file_of_shards_is_refused(shards, tmp_path, how, trials):
    names = [name for name in files_of(shards) if name.suffix == ".bin"]
    assert names
    for seed in trials:
        chance = random.Random(f"{how} {seed}")
        for name in names:
            shutil.copytree(shards, tmp_path / "copy")
            damage(tmp_path / "copy" / name, how, chance)
            with pytest.raises(UserError, match=name.name):
                check_files(tmp_path / "copy", read_manifest(tmp_path / "copy"))
            with pytest.raises(UserError, match=name.name):
                ek.Batches(tmp_path / "copy", 4, split=name.name.partition("-")[0]).open()
            shutil.rmtree(tmp_path / "copy")
        trials.count(len(names) - 1)


@pytest.mark.promise("Data", "flip, cut or deletion of the tokenizer of shards", "refused before training, or told")
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_to_the_tokenizer_of_shards_is_noticed(shards, tmp_path, how, trials):
    """A byte between two entries may change unnoticed: the tokenizer is the same."""
    right = load_tokenizer(shards / "tokenizer").json
    for seed in trials:
        chance = random.Random(f"{how} {seed}")
        for _ in range(10):
            shutil.copytree(shards, tmp_path / "copy")
            damage(tmp_path / "copy" / "tokenizer" / "tokenizer.json", how, chance)
            with contextlib.suppress(UserError):
                notices = check_tokenizer(tmp_path / "copy", describe_data(tmp_path / "copy"))
                assert how == "flip" and (notices or load_tokenizer(tmp_path / "copy" / "tokenizer").json == right)
            shutil.rmtree(tmp_path / "copy")
        trials.count(9)
    assert check_tokenizer(shards, describe_data(shards)) == []


@pytest.mark.promise("Data", "mutations of the shards' manifest", "read as it was, or one line")
def test_a_mutated_manifest_is_read_or_one_line(shards, tmp_path, trials):
    text = (shards / "manifest.json").read_bytes()
    before = read_manifest(shards)
    shutil.copytree(shards, tmp_path / "copy")
    for seed in trials:
        chance = random.Random(seed)
        for _ in range(50):
            mutated = bytearray(text)
            for _ in range(chance.randint(1, 3)):
                mutated[chance.randrange(len(mutated))] = chance.choice(b'0129{}[]",:nullxyz\xff')
            (tmp_path / "copy" / "manifest.json").write_bytes(mutated)
            try:
                found = read_manifest(tmp_path / "copy")
                check_files(tmp_path / "copy", found)
            except UserError as error:
                assert "\n" not in str(error)
                continue
            assert found.num_rows == before.num_rows
        trials.count(49)


@pytest.mark.promise("Reports", "random damage to metrics.jsonl, config.json and status.json", "a report, or one line")
@pytest.mark.long
def test_a_report_of_a_damaged_run_is_made_or_refused_in_one_line(run, tmp_path, trials):
    for seed in trials:
        chance = random.Random(seed)
        folder = tmp_path / f"run{seed}"
        shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("checkpoints"))
        for name in ("metrics.jsonl", "config.json", "status.json", "environment.json"):
            if chance.random() < 0.6:
                damage(folder / name, chance.choice(DAMAGES), chance)
        try:
            assert ek.report(folder, out=tmp_path / f"report{seed}.html").exists()
        except UserError as error:
            assert "\n" not in str(error)

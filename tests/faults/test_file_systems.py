"""All verbs that write, by real processes, on file systems of clusters and containers that a shim plays."""

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from electrakit import pretrain
from electrakit.runs import layout
from electrakit.train.checkpoint import find_damage
from tests.helpers.commands import Fault, compile_shim
from tests.helpers.processes import HANG
from tests.helpers.runs import assert_same

WALK = """
import json, sys
from pathlib import Path
import electrakit as ek
from electrakit.config.pretrain import PretrainConfig

folder, corpus = Path(sys.argv[1]), Path(sys.argv[2])
config = PretrainConfig.from_json(json.load(open(folder / "config.json")))
ek.prepare([corpus / "corpus.txt"], tokenizer=corpus / "tokenizer", length=32, valid=0.1, out=folder / "shards", workers=1)
for steps in (4, 6, 12):
    ek.pretrain(config, stop_after=steps)
for step in (10, 12):  # the second one replaces the first
    ek.export(config.run, folder / "exported", checkpoint=str(step))
lines = [f"{word}\\t{label}" for label, word in (("yes", "ba"), ("no", "de"))] * 8
(folder / "train.tsv").write_text("text\\tlabel\\n" + "\\n".join(lines) + "\\n")
for _ in range(2):
    ek.finetune(folder / "exported", train=folder / "train.tsv", dev=folder / "train.tsv", out=folder / "tuned", preset="small_budget",
                seeds=1, epochs=1, batch_size=8, length=16, workers=1, device="cpu")
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


def run_with(shim: Path, faults: list[Fault], command: list[str]) -> str:
    """Run a command whose system calls fail. What it said."""
    environment = {**os.environ, "LD_PRELOAD": str(shim), "ELECTRA_FAULTS": ";".join(map(str, faults))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stderr.split())


@pytest.mark.promise(
    "File systems",
    "no folder fsync, no flock, no rename of folders (SMB, NFS, Lustre, overlayfs)",
    "train, prepare, export and finetune work, and say what is missing",
)
@pytest.mark.long
@pytest.mark.parametrize(
    ("of_sync", "of_lock"),
    [(errno.EINVAL, errno.ENOLCK), (errno.EBADF, errno.ENOSYS), (errno.ENOTSUP, errno.EOPNOTSUPP)],
)
def test_every_verb_works_without_folder_sync_locks_and_renames(tiny, shards, shim, tmp_path, of_sync, of_lock):
    faults = [
        Fault("fsync_folder", of_sync, tmp_path),
        Fault("flock", of_lock, tmp_path),
        Fault("rename_folder", errno.EXDEV, tmp_path),
        Fault("rmdir", errno.ENOTEMPTY, tmp_path / "run", count=1),
    ]
    settings = {"save_every": 2, "keep_last": 2, "valid_every": 100}
    config = replace(tiny("run", **settings), data=tmp_path / "shards")
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    said = run_with(shim, faults, [sys.executable, "-c", WALK, str(tmp_path), str(shards.parent)])
    for notice in ("cannot flush folders", "is on a file system without locks", "folders cannot be renamed in"):
        assert notice in said, said
    assert said.count("cannot flush folders") == 1
    assert (tmp_path / "shards" / "manifest.json").read_bytes() == (shards / "manifest.json").read_bytes()
    assert layout.checkpoint_steps(config.run) == [10, 12]
    assert all(find_damage(layout.checkpoint_path(config.run, step)) is None for step in (10, 12))
    assert_same(pretrain(config), pretrain(tiny("whole", **settings)))
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["model_type"] == "electra"
    assert (tmp_path / "tuned" / "model" / "model.safetensors").exists()
    left = [path.name for path in tmp_path.rglob(".*") if path.name != ".lock"]
    assert left == []  # no half folder, no journal, no file of the heartbeat


@pytest.mark.promise("File systems", "old checkpoints cannot be removed", "training goes on")
@pytest.mark.long
def test_pruning_never_stops_a_run(tiny, shim, tmp_path):
    """Folders that cannot be removed at all, and an old checkpoint that is a link to cold storage."""
    config = tiny("run", save_every=2, keep_last=1, valid_every=100)
    first = pretrain(config, stop_after=2).checkpoint
    shutil.move(first, tmp_path / "cold")
    first.symlink_to(tmp_path / "cold")
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    code = "import json, sys; from electrakit import pretrain; from electrakit.config.pretrain import PretrainConfig as C\n"
    code += "pretrain(C.from_json(json.load(open(sys.argv[1]))))"
    faults = [Fault("rmdir", errno.ENOTEMPTY, config.run)]
    said = run_with(shim, faults, [sys.executable, "-c", code, str(tmp_path / "config.json")])
    assert said.count("old checkpoints in") == 1
    assert find_damage(tmp_path / "cold") is None and first.is_symlink()
    assert find_damage(layout.checkpoint_path(config.run, 12)) is None
    assert pretrain(config).is_complete  # the next start removes what is left
    assert layout.checkpoint_steps(config.run) == [2, 12]
    assert not list((config.run / "checkpoints").glob(".*"))

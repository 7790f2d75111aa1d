"""Files of the user's in a run folder: kept, and no reason to stop."""

import json
import shutil
import sys

import pytest

import electrakit as ek
from electrakit import pretrain
from electrakit.common.ownership import MARKER
from electrakit.runs import layout


@pytest.mark.promise("Files of others", "checkpoints/ removed by hand", "the old log is kept")
def test_the_log_of_a_run_whose_checkpoints_were_removed_is_kept(tiny, capfd):
    run = pretrain(tiny(steps=4))
    log = (run.path / "metrics.jsonl").read_text()
    shutil.rmtree(run.path / "checkpoints")
    pretrain(tiny(steps=4))
    assert (run.path / "metrics.1.jsonl").read_text() == log
    assert "the log so far is kept as" in capfd.readouterr().err
    steps = [
        [json.loads(line)["step"] for line in text.splitlines()]
        for text in (log, (run.path / "metrics.jsonl").read_text())
    ]
    assert steps[0] == steps[1]


@pytest.mark.promise("Files of others", "copies and notes among the checkpoints", "kept, training goes on")
def test_copies_and_notes_among_checkpoints_stay_and_stop_nothing(tiny):
    config = tiny(steps=8, save_every=2, valid_every=100, keep_last=1)
    run = pretrain(config, stop_after=4)
    folder = run.path / "checkpoints"
    last = layout.checkpoint_path(run.path, 4)
    shutil.copytree(last, folder / "step_4")
    shutil.copytree(last, folder / "step_0000004 (copy)")
    (last / "notes.txt").write_text("mine")
    strange = ["step_0000006", ".step_notes", ".step_0000008", ".step_0000008.replaced"]
    for name in strange:
        (folder / name).mkdir()
        (folder / name / "mine.txt").write_text("mine")
    shutil.rmtree(folder / "step_0000006")
    (folder / "step_0000006").write_text("mine")  # a file
    assert pretrain(config).is_complete
    names = {path.name for path in folder.iterdir()}
    assert {"step_4", "step_0000004 (copy)", "step_0000004", "step_0000008", ".step_notes"} <= names
    kept = {name: (folder / name).read_text() for name in names if (folder / name).is_file()}
    assert set(kept.values()) == {"mine"} and len(kept) == 1  # the file, under its name or the next
    assert (last / "notes.txt").exists()
    assert sum(1 for path in folder.rglob("mine.txt")) == 3
    assert layout.checkpoint_steps(run.path)[-1] == 8


def test_a_run_of_an_earlier_version_without_a_marker_is_resumed(tiny):
    run = pretrain(tiny(steps=6), stop_after=3)
    (run.path / MARKER).unlink()
    (run.path / "notes.txt").write_text("mine")
    assert pretrain(tiny(steps=6)).is_complete
    assert json.loads((run.path / MARKER).read_text())["kind"] == "run"
    assert (run.path / "notes.txt").read_text() == "mine"


@pytest.mark.promise("Files of others", "a file under a name that a stopped start never wrote", "refused")
def test_a_start_that_failed_claims_only_what_it_wrote(tiny, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "wandb", None)  # is not installed
        with pytest.raises(ek.UserError, match="--wandb mine needs its library"):
            pretrain(tiny(steps=2, wandb="mine"))
    run = tiny().run
    for name in ("status.json", "metrics.jsonl", "wandb_id"):
        (run / name).write_text("mine")
        with pytest.raises(ek.UserError, match=rf"{name} was not written by electrakit as part of a run"):
            pretrain(tiny(steps=2, wandb="mine"))
        assert (run / name).read_text() == "mine"
        (run / name).unlink()
    assert pretrain(tiny(steps=2)).is_complete


@pytest.mark.promise("Files of others", "--on-checkpoint writes into checkpoints", "all of them are kept, said once")
def test_checkpoints_into_which_on_checkpoint_writes_are_kept_and_that_is_said_once(tiny, capfd):
    config = tiny(steps=8, save_every=2, valid_every=100, keep_last=1, on_checkpoint="touch {path}/scores.txt")
    run = pretrain(config)
    assert layout.checkpoint_steps(run.path) == [2, 4, 6, 8]
    assert capfd.readouterr().err.count("scores.txt; let --on-checkpoint write elsewhere") == 1


@pytest.mark.promise("Files of others", "a file under a name that a run has not written yet", "refused")
def test_a_file_put_where_a_run_never_wrote_is_refused(tiny):
    run = pretrain(tiny(steps=2))
    (run.path / "wandb_id").write_text("mine")
    with pytest.raises(ek.UserError, match=r"wandb_id was not written by electrakit as part of a run"):
        pretrain(tiny(steps=2, wandb="mine"))
    assert pretrain(tiny(steps=2)).is_complete  # which does not write it
    assert (run.path / "wandb_id").read_text() == "mine"

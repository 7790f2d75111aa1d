"""Reading run folders: complete, truncated, returned to a checkpoint, copied, or no run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from electrakit import pretrain
from electrakit.common.errors import UserError
from electrakit.runs.files import Environment, Progress, Status, is_run, read_metrics, read_progress, read_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run by hand: two lines of the log and a validation."""
    folder = tmp_path / "mine"
    folder.mkdir()
    settings = {"batch_size": 8, "length": 32, "data": "shards"}
    (folder / "config.json").write_text(json.dumps({"settings": settings, "data": {"vocab_size": 120}, "processes": 1}))
    write(folder, [line(0, "valid"), line(10), line(20)])
    return folder


def line(step: int, split: str = "train", loss: float | None = 1.0) -> dict:
    return {"step": step, "split": split, "loss": loss}


def write(folder: Path, lines: list[dict], end: str = "") -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines) + end)


def test_a_real_run_is_read_as_it_was_written(tiny):
    done = pretrain(tiny())
    run = read_run(done.path)
    assert (run.name, run.step, run.is_complete) == ("run", 12, True)
    assert run.train == done.metrics() and run.valid == done.metrics("valid")
    assert run.settings["batch_size"] == 8 and run.data.vocab_size == 120 and run.tokens_per_step == 8 * 32
    assert run.environment.versions["torch"] and run.progress.num_skipped == 0
    assert run.checkpoint == done.checkpoint and run.shards == tiny().data and run.glue is None


@pytest.mark.promise("Reports", "missing or cut files of a run", "read as far as they go")
def test_what_is_missing_or_cut_off_does_no_harm(folder):
    write(folder, [line(10), line(20, loss=None)], end='{"step": 30, "split": "tr')
    (folder / "status.json").write_text('{"step": 30, "is_comp')
    (folder / "glue").mkdir()
    (folder / "glue" / "results.json").write_text('{"model": "hf/mine"}')
    run = read_run(folder)
    assert [one["step"] for one in run.train] == [10, 20] and run.step == 20
    assert (run.environment, run.status, run.progress) == (Environment(), Status(), Progress()) and not run.is_complete
    assert run.checkpoint is None and run.shards is None and run.glue == {"model": "hf/mine"}
    (folder / "metrics.jsonl").unlink()
    assert read_run(folder).lines == [] and read_run(folder).step == 0


def test_lines_that_are_no_metrics_are_left_out(folder):
    (folder / "metrics.jsonl").write_text(
        '[]\n3\n{"step": "x", "split": "train"}\n{"step": 5}\n\n{"step": 7, "split": "train"}\n'
    )
    assert read_metrics(folder) == [{"step": 7, "split": "train"}]


def test_of_steps_that_were_done_again_the_later_lines_hold(folder):
    """A copy of a log, made while its run went back, has both."""
    write(folder, [line(10), line(20, loss=2.0), line(20, "valid"), line(30, loss=9.0), line(15), line(20, loss=3.0)])
    run = read_run(folder)
    assert [(one["step"], one["loss"]) for one in run.train] == [(10, 1.0), (15, 1.0), (20, 3.0)]
    assert [one["step"] for one in run.valid] == [20]


@pytest.mark.long
def test_a_resumed_run_has_every_step_once(tiny):
    pretrain(tiny(), stop_after=7)
    before = read_run(tiny().run)
    assert not before.is_complete and before.progress.step == 7
    run = read_run(pretrain(tiny()).path)
    assert [one["step"] for one in run.train] == [4, 8, 12] and run.is_complete


def test_a_checkpoint_whose_step_cannot_be_read_is_never_taken_for_a_first_one(tiny):
    path = pretrain(tiny()).checkpoint / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"step": 8.0}))
    with pytest.raises(UserError, match=r"state\.json: step is 8\.0, which this version cannot use"):
        read_progress(path.parent)


def test_a_folder_that_is_no_run_is_a_clear_error(tmp_path, shards):
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "electra"}')
    for path in (tmp_path, tmp_path / "hf", shards):
        assert not is_run(path)
        with pytest.raises(
            UserError, match=f"{path.name} has no config.json of a run: name the folder that electra pretrain"
        ):
            read_run(path)
    with pytest.raises(UserError, match="nowhere is no folder"):
        read_run(tmp_path / "nowhere")


def test_reading_a_run_and_examining_it_need_no_torch(folder):
    code = "import sys; from electrakit import examine; examine([sys.argv[1]]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)

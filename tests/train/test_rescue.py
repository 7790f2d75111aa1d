"""A run folder that goes away while it is trained in: the run is saved beside it."""

import errno
import fcntl
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from electrakit import pretrain
from electrakit.common import lock
from electrakit.common.errors import UserError
from electrakit.common.ownership import MARKER
from electrakit.runs import layout
from tests.helpers.processes import wait_until
from tests.helpers.runs import assert_same


def empty(run: Path) -> None:
    """rm -rf run/*"""
    for path in run.glob("[!.]*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_and_make_anew(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


def give_to_another_run(run: Path) -> None:
    """The same folder, emptied, with the files of a run that was started there meanwhile."""
    config = (run / layout.CONFIG_FILE).read_bytes()
    empty(run)
    (run / ".lock").unlink()
    for name in (".lock", layout.METRICS_FILE):
        (run / name).touch()
    (run / layout.CONFIG_FILE).write_bytes(config)


@pytest.mark.long
@pytest.mark.promise(
    "Training", "run folder removed or moved", "saved beside it, exit code 2, the same bits after a restart"
)
@pytest.mark.parametrize(
    "how",
    [shutil.rmtree, empty, remove_and_make_anew, give_to_another_run, lambda run: run.rename(run.with_name("moved"))],
)
def test_a_run_whose_folder_goes_away_is_saved_beside_it_and_goes_on_with_the_same_bits(
    tiny, how: Callable[[Path], object]
):
    settings = {"log_every": 3, "valid_every": 100}
    config = tiny("mine", **settings)
    run, rescued = config.run, config.run.with_name("mine.rescued")
    with pytest.raises(
        UserError, match=r"mine was removed or moved .* at step 6; .* start the same command with --run"
    ):
        pretrain(config, on_checkpoint=lambda _: how(run))  # after the fifth step
    assert layout.checkpoint_steps(rescued) == [6]
    assert not (run / layout.METRICS_FILE).exists() or not (run / layout.METRICS_FILE).read_bytes()
    assert not (run / layout.STATUS_FILE).exists()
    assert_same(pretrain(replace(config, run=rescued)), pretrain(tiny("whole", **settings)))


def test_the_end_of_a_run_notices_it_too_and_an_older_rescue_is_kept(tiny):
    config = tiny("mine", log_every=100, valid_every=100, save_every=11)
    older = config.run.with_name("mine.rescued")
    older.mkdir()
    with pytest.raises(UserError, match=r"mine\.rescued-2"):
        pretrain(config, on_checkpoint=lambda _: shutil.rmtree(config.run))
    assert layout.checkpoint_steps(config.run.with_name("mine.rescued-2")) == [12]
    assert not list(older.iterdir())
    assert json.loads((config.run.with_name("mine.rescued-2") / MARKER).read_text())["kind"] == "run"


@pytest.mark.promise("Training", "metrics.jsonl removed", "written again")
def test_a_log_that_was_removed_alone_does_not_stop_a_run(tiny):
    config = tiny("mine", valid_every=100)
    assert pretrain(
        config, on_checkpoint=lambda _: (config.run / layout.METRICS_FILE).unlink(missing_ok=True)
    ).is_complete
    assert not config.run.with_name("mine.rescued").exists()


def test_a_run_that_another_process_took_over_ends_without_saving(tiny, monkeypatch):
    """A file system without flock, where this process had paused."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    def take_over(_: object) -> None:
        (config.run / lock.HELD_FILE).write_text('{"host": "elsewhere", "pid": 1, "started": "2"}')
        wait_until(lambda: lock.is_taken_over(config.run))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(lock, "HEARTBEAT", 0.01)
    config = tiny("mine", log_every=3, valid_every=100)
    with pytest.raises(UserError, match=r"another process took over .*mine.* at step 6, without saving"):
        pretrain(config, on_checkpoint=take_over)  # after the fifth step
    assert layout.checkpoint_steps(config.run) == [5]
    assert "elsewhere" in (config.run / lock.HELD_FILE).read_text()

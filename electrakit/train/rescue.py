"""A run whose folder was removed or moved while it trained: notices it, and saves the run beside its old place."""

import errno
import os
from dataclasses import replace
from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.common.lock import LOCK_FILE, is_taken_over
from electrakit.runs import layout
from electrakit.runs.files import Status, run_folder, write_status
from electrakit.train.checkpoint import Checkpoints
from electrakit.train.state import TrainState, begin_run

GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


def check_folder(state: TrainState) -> None:
    """Every rank calls this. If the folder is gone, the run is saved beside it, and ends. If it is another's by now, it just ends."""
    found = (is_gone(state), is_taken_over(state.path)) if state.group.is_main else None
    has_gone, has_other_writer = state.group.broadcast(found)
    if has_gone:
        save_beside(state)
    if has_other_writer:
        raise UserError(
            f"another process took over {state.path}, because this one had paused for too long: it ends at step "
            f"{state.progress.step:,}, without saving; the other one continues the run"
        )


def is_gone(state: TrainState) -> bool:
    """Whether the run folder was removed, or another process writes to it now.

    A log that was removed alone is no reason to stop. The lock's file is open: no new file has its number, as a new folder may.
    """
    if has_inode(state.path / layout.METRICS_FILE, os.fstat(state.log.file.fileno()).st_ino):
        return False
    return not has_inode(state.path / LOCK_FILE, state.lock_inode) or not (state.path / layout.CONFIG_FILE).exists()


def has_inode(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except OSError as error:
        return error.errno not in GONE  # a network that is away for a moment has removed nothing


def save_beside(state: TrainState) -> None:
    """All that can be saved: settings, the whole log, and a checkpoint of this step."""
    what = f"the run folder {state.path} was removed or moved while it was training, at step {state.progress.step:,}"

    def begin() -> Path:
        try:
            place = found_place(state.path)
            begin_run(place, replace(state.config, run=place), state.data, state.group)
            run_folder(place).write(layout.METRICS_FILE, state.log.content())
        except OSError as error:
            raise UserError(f"{what}; it cannot be saved beside it: {error}") from None
        return place

    state.log.tensorboard = None  # its file is gone, too
    place = state.group.run_on_main(begin)
    state.update_progress()
    if state.progress.best_step != state.progress.step:  # the checkpoint of the best one is gone
        state.progress.best_step = state.progress.best_loss = None
    state.progress.milestones = []
    kept = Checkpoints(place, state.config.keep_last, state.config.milestones)
    kept.save(state.progress, state.objective, state.optimizer, state.tokenizer, state.group)
    if state.group.is_main:
        write_status(place, Status(state.progress.step, is_complete=False))
    raise UserError(
        f"{what}; all but earlier checkpoints is saved in {place}: start the same command with --run {place}"
    )


def found_place(run: Path) -> Path:
    """A new folder: NAME.rescued, or with a number if there is one."""
    number = 1
    while True:
        place = run.absolute().with_name(f"{run.absolute().name}.rescued" + (f"-{number}" if number > 1 else ""))
        try:
            place.mkdir(parents=True)
            return place
        except FileExistsError:
            number += 1

"""Settings in, a trained run out: the whole of pretraining, from the first step to the last.

A step is a function of the weights, the optimizer's state and the step's number: rows, masks and dropout follow from the seed and
that number. So a run that is stopped, or killed, and started again ends with the same bits.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.nn.utils import clip_grad_norm_

from electrakit.errors import UserError, mended_by_user
from electrakit.pretrain_config import PretrainConfig
from electrakit.train import run_folder
from electrakit.train.distributed import averaging, join, whole
from electrakit.train.losses import share_of_loss, shares_of
from electrakit.train.run_folder import Run
from electrakit.train.schedule import lr_at
from electrakit.train.signals import Interrupts
from electrakit.train.training import Training

MAX_SKIPPED_IN_A_ROW = 3


def pretrain(
    config: PretrainConfig,
    objective: nn.Module | None = None,
    *,
    on_checkpoint: Callable[[Path], Any] | None = None,
    stop_after: int | None = None,
    interrupts: Interrupts | None = None,
) -> Run:
    """Train, or go on with a run that was stopped. The same call under torchrun trains on many devices.

    Args:
        config: what a preset makes: `presets.electra_small(data="shards/mine", run="runs/mine")`.
        objective: your own pair, such as `Electra(generator, discriminator, ...)`; then the networks of `config` do not matter.
        on_checkpoint: called with the folder of each checkpoint; if it fails, training goes on.
        stop_after: stop, as on a signal, when this many steps of the run are done.
        interrupts: who listens for signals already; without it this call does, and handlers are then as they were before.
    """
    if config.data is None or config.run is None:
        raise UserError("a run needs data and run: the folder of shards (--data) and the folder to write (--run)")
    with mended_by_user(config.run, run_folder.RELIEF), contextlib.ExitStack() as held:
        team = held.enter_context(join())
        held.enter_context(run_folder.opened(config.run, team))
        interrupts = interrupts or held.enter_context(Interrupts())
        training = held.enter_context(contextlib.closing(Training(config, objective, team, on_checkpoint)))
        train(training, interrupts, stop_after)
        run = Run(config.run, training.progress.step, training.is_over)
        if team.is_first:
            run_folder.write_status(run)
        return run


def train(training: Training, interrupts: Interrupts, stop_after: int | None) -> None:
    """From the step that is next to the last one, or until somebody asks to stop."""
    config = training.config

    def is_asked() -> bool:
        return interrupts.is_asked or is_reached(training.progress.step, stop_after)

    is_stopping = training.should_stop(is_asked())
    if training.progress.last_validated is None and not is_stopping:
        training.validate()
    while not is_stopping:
        train_step(training)
        training.progress.step += 1
        if training.must_look() and training.figures.take_longest_row() >= MAX_SKIPPED_IN_A_ROW:
            go_back(training)
            continue
        is_stopping = training.should_stop(is_asked())
        if training.is_over or training.is_due(config.log_every):
            training.write_log()
        is_best = (training.is_over or training.is_due(config.valid_every)) and training.validate()
        is_milestone = training.progress.step in config.milestones
        if is_stopping or is_best or is_milestone or training.is_due(config.save_every):
            training.save()
            # that may have taken long, and is not to be done twice
            is_stopping |= training.team.agree(is_asked(), 0.0)[0]
    if training.is_over and training.progress.last_validated != training.progress.step:
        training.validate()  # it was stopped right here before
        training.save()  # with what is now known
    if training.last_saved is None:  # it was asked to stop before the first step
        training.save()
    how = "complete" if training.is_over else "stopped; start the same command again to go on"
    where = training.checkpoints.path(training.progress.step)
    training.log.say(f"{training.path}: {how} at step {training.progress.step:,}, saved in {where}")


def is_reached(step: int, limit: int | None) -> bool:
    return limit is not None and step >= limit


def train_step(training: Training) -> None:
    """One update: forward and backward for each micro-batch, then clip and step."""
    config, team, step = training.config, training.team, training.progress.step
    torch.manual_seed(seed_of_step(training.seed, step, team.rank))  # dropout
    pieces = training.feed.pieces(step)
    shares = shares_of(pieces, training.objective, config.batch_size, team)
    for piece, share in zip(pieces, shares, strict=True):
        with averaging(training.module, piece.is_last):
            output = training.compute(training.module, piece)
            loss = share_of_loss(output, share, training.objective)
            (loss * team.size).backward()  # the team takes the mean of its gradients
        training.figures.add(output, loss, share, piece.num_rows / config.batch_size)
    max_norm = torch.inf if config.optim.max_grad_norm is None else config.optim.max_grad_norm
    grad_norm = whole(clip_grad_norm_(training.objective.parameters(), max_norm))
    lr = lr_at(config.optim, step, config.steps, training.share_of_budget)
    is_finite = training.figures.end_step(grad_norm, lr)
    training.optimizer.step(lr, is_finite)
    training.optimizer.zero_grad()


def seed_of_step(seed: int, step: int, rank: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{seed}/{step}/{rank}".encode()) >> 1


def go_back(training: Training) -> None:
    """After three steps in a row without a finite gradient: to the last checkpoint, once, and on with other masks and dropout."""
    checkpoint = training.newest_checkpoint()
    what = f"loss or gradient were not finite for {MAX_SKIPPED_IN_A_ROW} steps in a row, up to step {training.progress.step:,}"
    if training.progress.num_returns or checkpoint is None:
        also = "there is no checkpoint to go back to" if checkpoint is None else f"{checkpoint} did not help"
        raise UserError(f"{what}, and {also}; try a lower optim.lr or a longer optim.warmup_steps in a new --run")
    training.log.say(f"{what}: going back", "bold yellow")
    training.go_on_from(checkpoint, num_returns=1)

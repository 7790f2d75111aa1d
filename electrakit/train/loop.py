"""Pretraining, from the first step to the last: when a run steps, logs, validates, saves, returns to a checkpoint, and stops.

A step is a function of the weights, the optimizer's state and the step's number: rows, masks and dropout follow from the seed and
that number. So a run that is stopped, or killed, and resumed ends with the same bits.
"""

import contextlib
import math
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from electrakit.common.atomic import write_lock
from electrakit.common.errors import UserError, explain_write_errors, first_line, is_out_of_memory, one_line
from electrakit.common.ownership import require_apart
from electrakit.config.pretrain import PretrainConfig
from electrakit.objective.output import Output
from electrakit.objective.with_generator import WithGenerator
from electrakit.runs.files import PretrainRun, Status, run_folder, write_status
from electrakit.train import hardware_choices
from electrakit.train.distributed import ProcessGroup, full_tensor, gradient_sync, join_process_group
from electrakit.train.log import without_tracebacks_of_tensorboard
from electrakit.train.metrics import LOSSES, counts_tokens
from electrakit.train.prefetch import MicroBatch
from electrakit.train.rescue import check_folder
from electrakit.train.schedule import scheduled_lr
from electrakit.train.signals import Interrupts
from electrakit.train.state import REMEDY, TrainState

MAX_SKIPPED_IN_A_ROW = 3
TRIM_EVERY = 100  # steps after which unused memory is given back: the heap of a run of `mini` grew by 75 % in 700 steps


def pretrain(
    config: PretrainConfig,
    objective: nn.Module | None = None,
    *,
    on_checkpoint: Callable[[Path], Any] | None = None,
    stop_after: int | None = None,
    interrupts: Interrupts | None = None,
) -> PretrainRun:
    """Train, or resume a run that was stopped. The same call under torchrun trains on many devices.

    Args:
        config: what a preset makes: `presets.electra_small(data="shards/mine", run="runs/mine")`.
        objective: your own pair, such as `Electra(generator, discriminator, ...)`; then the networks of `config` do not matter.
        on_checkpoint: called with the folder of each checkpoint; if it fails, training continues.
        stop_after: stop, as on a signal, when this many steps of the run are done.
        interrupts: handlers of signals that are installed already; by default they are installed for the time of this call.
    """
    if config.data is None or config.run is None:
        raise UserError("a run needs data and run: the folder of shards (--data) and the folder to write (--run)")
    explained = explain_write_errors(config.run, REMEDY, runs_users_code=True)
    with explain_no_memory(config), explained, contextlib.ExitStack() as held:
        group = held.enter_context(join_process_group())
        group.run_on_main(partial(lock, config, held))
        interrupts = interrupts or held.enter_context(Interrupts())
        held.enter_context(without_tracebacks_of_tensorboard())
        state = held.enter_context(contextlib.closing(TrainState(config, objective, group, on_checkpoint)))
        train(state, interrupts, stop_after)
        status = Status(state.progress.step, is_over(state))
        if group.is_main:
            write_status(config.run, status)
        return PretrainRun(config.run, status.step, status.is_complete)


@contextlib.contextmanager
def explain_no_memory(config: PretrainConfig) -> Iterator[None]:
    """Turn the errors of a system, or of a GPU, without memory into a UserError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        size = "" if config.micro_batch is None else f", now {config.micro_batch}"
        raise UserError(
            f"not enough memory to train {config.run} ({first_line(error)}); checkpoints are untouched: close other programs, or use a "
            f"smaller --micro-batch{size}, and start the same command again"
        ) from None


def lock(config: PretrainConfig, held: contextlib.ExitStack) -> None:
    """No other process writes the run folder while this is held. A folder that is not ours is refused before it is touched."""
    assert config.run is not None
    require_apart(config.run, [config.data, config.init_discriminator, config.init_generator], "--run")
    folder = run_folder(config.run, uses_wandb=config.wandb is not None)
    with explain_write_errors(config.run, REMEDY):
        folder.require_ours()
        held.enter_context(write_lock(config.run, "--run"))
        folder.begin()


def train(state: TrainState, interrupts: Interrupts, stop_after: int | None) -> None:
    """From the next step to the last one, or until a process is asked to stop."""
    config = state.config

    def stop_requested() -> bool:
        return interrupts.stop_requested or (stop_after is not None and state.progress.step >= stop_after)

    is_asked, budget_used, _ = state.group.agree(stop_requested(), state.read_clock())
    advance(state, budget_used)
    must_stop = is_asked or is_over(state)
    if state.progress.last_validated is None and not must_stop:
        validate(state)
    while not must_stop:
        train_step(state)
        state.progress.step += 1
        step = state.progress.step
        if can_read_device(state) and state.metrics.pop_longest_skip() >= MAX_SKIPPED_IN_A_ROW:
            return_to_checkpoint(state)
            continue
        is_asked, budget_used, is_late = state.group.agree(stop_requested(), state.read_clock(), state.is_save_due())
        advance(state, budget_used)
        must_stop = is_asked or is_over(state)
        is_best = False
        ends_stage = step == config.objective.generator_steps  # a mean over both stages would be of neither
        if is_over(state) or ends_stage or is_due(step, config.log_every):
            state.log.write("train", step, state.pop_train_metrics())
            check_folder(state)
        if is_over(state) or is_due(step, config.valid_every):
            is_best = validate(state)
        if must_stop or is_best or is_late or step in config.milestones or is_due(step, config.save_every):
            save(state)
            # Saving may take long. A request to stop that came meanwhile does not wait for another step and another checkpoint.
            must_stop = must_stop or state.group.agree(stop_requested())[0]
        elif is_due(step, TRIM_EVERY):
            hardware_choices.give_back_memory()
        if is_due(step, math.ceil(state.prefetch.batches.steps_per_epoch)):
            state.refuse_changed_shards()
    if is_over(state) and state.progress.last_validated != state.progress.step:
        validate(state)  # an earlier start was stopped right after the last step
        save(state)
    if state.last_saved is None:  # it was asked to stop before the first step
        save(state)
    how = "complete" if is_over(state) else "stopped; start the same command again to resume"
    where = state.checkpoints.path(state.progress.step)
    state.log.message(f"{state.path}: {how} at step {state.progress.step:,}, saved in {where}")


# When


def advance(state: TrainState, budget_used: float) -> None:
    """Set how much of the budget is used, and advance the progress bar."""
    state.budget_used = None if state.config.budget_seconds is None else min(1.0, budget_used)
    state.log.advance(state.progress.step, state.seconds_left())


def is_over(state: TrainState) -> bool:
    if state.config.budget is not None:
        return state.budget_used == 1.0
    return state.progress.step >= state.config.steps


def is_due(step: int, interval: int) -> bool:
    return step % interval == 0


def can_read_device(state: TrainState) -> bool:
    """On a GPU values are read only at steps that wait for it anyway."""
    config, step = state.config, state.progress.step
    intervals = (config.log_every, config.valid_every, config.save_every)
    is_waiting = step in config.milestones or any(is_due(step, interval) for interval in intervals)
    return state.group.device.type == "cpu" or is_waiting


# A step


def train_step(state: TrainState) -> None:
    """One update: forward and backward for each micro-batch, then clip and step."""
    config, group, step = state.config, state.group, state.progress.step
    torch.manual_seed(seed_of_step(state.seed, step, group.rank))  # dropout
    if isinstance(state.objective, WithGenerator):
        state.objective.set_progress(step / config.steps if state.budget_used is None else state.budget_used)
        state.objective.begin_step(step)
    micro_batches, num_tokens = mask_all(state.prefetch.micro_batches(step), state.objective, group)
    for micro_batch in micro_batches:
        row_share = micro_batch.num_rows / config.batch_size
        with gradient_sync(state.module, micro_batch.is_last):
            output = forward(state, state.module, micro_batch)
            loss, token_shares = share_of_loss(output, micro_batch, num_tokens, state.objective, row_share)
            (loss * group.world_size).backward()  # gradients are averaged over the ranks
        state.metrics.add(output, loss, token_shares, row_share)
    max_norm = torch.inf if config.optim.max_grad_norm is None else config.optim.max_grad_norm
    norms = [full_tensor(clip_grad_norm_(parameters, max_norm)) for parameters in state.clipped_together]
    norms = [norm.to(group.device) for norm in norms]  # of parameters without gradients it is a zero on the CPU
    grad_norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
    is_finite = torch.isfinite(grad_norm) & torch.isfinite(state.metrics.step_loss())
    lr = scheduled_lr(config.optim, *place_in_stage(config, step), state.budget_used)
    state.metrics.end_step(is_finite, grad_norm, lr)
    state.optimizer.step(lr, is_finite)  # skipped if not finite
    state.optimizer.zero_grad()


def place_in_stage(config: PretrainConfig, step: int) -> tuple[int, int]:
    """The step's number within its stage, and the steps of that; each stage has a learning rate schedule of its own."""
    first_stage = config.objective.generator_steps
    if first_stage is None:
        return step, config.steps
    return (step, first_stage) if step < first_stage else (step - first_stage, config.steps - first_stage)


def seed_of_step(seed: int, step: int, rank: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{seed}/{step}/{rank}".encode()) >> 1


def forward(state: TrainState, module: nn.Module, micro_batch: MicroBatch) -> Output:
    """The output of the objective, or of its DDP or FSDP wrapper. If the compiler fails, training continues without it."""
    with state.precision:
        try:
            return module(micro_batch.ids, micro_batch.draws)
        except RuntimeError as error:
            if not state.config.compile or not hardware_choices.is_compiler_error(error):
                raise
            state.log.message(f"Continuing without compiling: {one_line(error)}", "bold yellow")
            hardware_choices.stop_compiling(state.objective)
            return module(micro_batch.ids, micro_batch.draws)


def mask_all(
    micro_batches: list[MicroBatch], objective: nn.Module, group: ProcessGroup
) -> tuple[list[MicroBatch], Tensor | None]:
    """Mask all micro-batches before the first forward pass, and count the step's tokens that each loss is over, on all ranks: (2,).

    The mean of the micro-batches' means would be another number: rows have different lengths. A single micro-batch is left unmasked,
    since its means are those of the step; so are those of an objective that does not count tokens.
    """
    if (len(micro_batches) == 1 and group.world_size == 1) or not counts_tokens(objective):
        return micro_batches, None
    masked = [objective.mask(each.ids, each.draws) for each in micro_batches]
    pairs = list(zip(micro_batches, masked, strict=True))
    counts = [batch.num_tokens.double() * bool(each.num_rows) for each, batch in pairs]
    totals = group.sum(torch.stack(counts).sum(0)).clamp(min=1)
    return [each._replace(draws=batch) for each, batch in pairs], totals


def share_of_loss(
    output: Output, micro_batch: MicroBatch, num_tokens: Tensor | None, objective: nn.Module, row_share: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """What a micro-batch adds to the loss of the step, and its share of the step's tokens for each loss."""
    if num_tokens is None or output.num_tokens is None or not counts_tokens(objective):
        return output.loss * row_share, {}
    of_chosen, of_scored = (output.num_tokens.double() * bool(micro_batch.num_rows) / num_tokens).float()
    shares = (of_chosen, of_scored, of_chosen)
    values = (output.mlm_loss, output.disc_loss, output.correct_loss)
    losses = zip(objective.loss_weights, values, shares, strict=True)
    terms = [weight * loss * share for weight, loss, share in losses if loss is not None]
    return torch.stack(terms).sum(), dict(zip(LOSSES, shares, strict=True))


# Between steps


def validate(state: TrainState) -> bool:
    """Measure the objective on the valid split. Returns whether its loss is the lowest so far."""
    progress, corruptions = state.progress, state.corruptions
    with state.outside_of_training("prepare corruptions"):
        corruptions.prepare(state.objective)
    with state.outside_of_training("validate"):
        metrics = state.validation(state.objective, partial(forward, state))
        with state.precision:
            metrics |= corruptions(state.objective)
    progress.last_validated = progress.step
    if not metrics:
        if progress.step == 0:
            text = f"{state.config.data} has too few valid rows: no validation (prepare with --valid 0.01)"
            state.log.message(text, "yellow")
        return False
    state.log.write("valid", progress.step, metrics)
    is_lowest = progress.best_loss is None or metrics["loss"] < progress.best_loss
    # Step 0 has no checkpoint that could be the best.
    is_best = is_lowest and math.isfinite(metrics["loss"]) and progress.step > 0
    if is_best:
        progress.best_step, progress.best_loss = progress.step, metrics["loss"]
    return is_best


def save(state: TrainState) -> None:
    """Write a checkpoint, then call on_checkpoint."""
    check_folder(state)
    state.refuse_changed_shards()
    state.update_progress()
    with state.outside_of_training("save"):
        try:
            state.group.run_on_main(state.log.sync)
            path = state.checkpoints.save(
                state.progress, state.objective, state.optimizer, state.tokenizer, state.group
            )
        except UserError:
            check_folder(state)  # it may have been removed meanwhile
            raise
        hardware_choices.give_back_memory()
    state.last_saved = state.progress.step
    with state.outside_of_training("on_checkpoint"):
        state.group.run_on_main(lambda: call_on_checkpoint(state, path))
    state.saved_at = time.monotonic()


def call_on_checkpoint(state: TrainState, path: Path) -> None:
    """The function, then the command; a failure is reported, and training continues."""
    try:
        if state.on_checkpoint is not None:
            state.on_checkpoint(path)
        if state.config.on_checkpoint is not None:
            command = state.config.on_checkpoint.replace("{path}", shlex.quote(str(path)))
            subprocess.run(command, shell=True, check=True)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code may raise anything, SystemExit too
        state.log.message(f"on_checkpoint failed for {path}: {type(error).__name__}: {error}", "bold yellow")


def return_to_checkpoint(state: TrainState) -> None:
    """After three steps in a row without a finite gradient: return to the last checkpoint, once, and continue with other masks."""
    checkpoint = state.newest_checkpoint()
    what = f"loss or gradient were not finite for {MAX_SKIPPED_IN_A_ROW} steps in a row, up to step {state.progress.step:,}"
    if state.progress.num_returns or checkpoint is None:
        also = "there is no checkpoint to return to" if checkpoint is None else f"{checkpoint} did not help"
        raise UserError(f"{what}, and {also}; try a lower optim.lr or a longer optim.warmup_steps in a new --run")
    state.log.message(f"{what}: returning to the last checkpoint", "bold yellow")
    state.resume_from(checkpoint, is_return=True)

"""Builds everything that a run trains with, and puts it where the run was at its newest checkpoint."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from electrakit.common.errors import UserError, explain_write_errors
from electrakit.common.lock import LOCK_FILE
from electrakit.config.corpus import SHARDS_TOKENIZER
from electrakit.config.pretrain import PretrainConfig
from electrakit.data.batches import Batches
from electrakit.model.counts import useful_flops
from electrakit.model.tie import state_once
from electrakit.runs import layout
from electrakit.runs.files import Progress, Status, run_folder, write_environment, write_status
from electrakit.runs.settings import DataDescription, StoredConfig, check_fits, read_config, write_config
from electrakit.train import hardware_choices, initial_weights
from electrakit.train.checkpoint import Checkpoints, load_checkpoint
from electrakit.train.distributed import ProcessGroup, Value, distribute
from electrakit.train.log import Log
from electrakit.train.metrics import MetricSums
from electrakit.train.optim import RunOptimizer, clipped_together
from electrakit.train.prefetch import Prefetch
from electrakit.train.validation import FixedCorruptions, Validation

MAX_SAVING_SHARE = 0.02  # of the time, where the clock decides when to save
REMEDY = "raise the limit (ulimit -a) or close other programs"  # where there are too many files or processes
DISK_SPEED = 100e6  # bytes per second: an estimate until the first checkpoint is written


class TrainState:
    """The networks, optimizer, data, log and checkpoints of a run, and its progress. `loop.py` decides what is done with them."""

    def __init__(
        self,
        config: PretrainConfig,
        objective: nn.Module | None,
        group: ProcessGroup,
        on_checkpoint: Callable[[Path], Any] | None = None,
    ) -> None:
        import transformers  # noqa: F401  # takes seconds, which the first checkpoint would otherwise take longer

        assert config.data is not None and config.run is not None
        self.path, self.group, self.on_checkpoint = config.run, group, on_checkpoint
        shards, is_custom = config.data, objective is not None
        # Its files as they are now, by name: the shards may be removed, or made anew, while the run trains.
        self.tokenizer = {
            path.name: path.read_bytes() for path in (shards / SHARDS_TOKENIZER).glob("*") if path.is_file()
        }
        self.data = data = initial_weights.describe_data(shards)
        notices = initial_weights.check_tokenizer(shards, data)
        self.checkpoints = Checkpoints(self.path, config.keep_last, config.milestones)
        newest = self.newest_checkpoint()
        before = None if newest is None else read_config(self.path)
        config, existing = resolve_settings(config, data, group, before, objective)
        self.config = config
        if before is not None:
            check_fits(self.path, before, config, data)

        if objective is None:
            objective = initial_weights.new_objective(config, data.special_ids, existing)
            if newest is None and config.init_embeddings == "counts":
                initial_weights.start_from_counts(objective, config)
            if newest is None and config.init_attention == "neighbours":
                initial_weights.start_at_neighbours(objective)
        # FSDP moves the shards to the device itself.
        self.objective = objective.train() if config.fsdp else objective.to(group.device).train()
        if config.recompute:
            initial_weights.recompute_activations(objective)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        notices += hardware_choices.make_fast(objective, config, group)
        has_unused = is_custom or config.objective.generator_steps is not None
        self.module = distribute(objective, group, fsdp=config.fsdp, has_unused=has_unused)
        self.optimizer = RunOptimizer(objective, config.optim, muon_dtype=hardware_choices.DTYPES[config.precision])
        # Lists of parameters: in the joint step one list.
        self.clipped_together = clipped_together(objective, config.optim)
        self.precision = torch.autocast(group.device.type, torch.bfloat16, enabled=config.precision == "bf16")

        place: dict[str, Any] = {"rank": group.rank, "world_size": group.world_size, "micro_batch": config.micro_batch}
        batches = Batches(shards, config.batch_size, seed=config.seed, verify=group.is_main, **place)
        group.run_on_main(batches.open)  # which compares hashes: what is damaged is told by all
        self.prefetch = Prefetch(batches, config.seed, group)
        self.validation, self.corruptions = Validation(config, group), FixedCorruptions(config, group)
        has_stages = config.objective.generator_steps is not None  # their steps compute different things
        has_peak = config.precision == "bf16" and not is_custom and not has_stages
        self.peak_flops = hardware_choices.find_peak_flops(group) if has_peak else None
        self.flops_per_token = useful_flops(config) / config.length
        # Of a time budget, from 0 to 1; None without one.
        self.budget_used: float | None = None
        # How long the last of each took: a time budget keeps that much free for the end of the run.
        save_seconds = max(1.0, checkpoint_bytes(objective, self.optimizer) / DISK_SPEED)
        self.seconds_of = {"validate": 0.0, "save": save_seconds, "on_checkpoint": 0.0}

        self.write_on_main(self.begin_files)
        self.log = Log(self.path, config, is_silent=not group.is_main)
        for text in notices:
            self.log.message(text, "yellow")
        self.resume_from(newest)
        self.write_on_main(self.tell_start)

    def write_on_main(self, work: Callable[[], Value]) -> Value:
        """Rank 0 works in the run folder; if it cannot, all ranks say so."""

        def write() -> Value:
            with explain_write_errors(self.path, REMEDY):
                return work()

        return self.group.run_on_main(write)

    def begin_files(self) -> None:
        begin_run(self.path, self.config, self.data, self.group)
        self.checkpoints.clean()
        held = self.path / LOCK_FILE
        self.lock_inode = held.stat().st_ino if held.exists() else 0  # `pretrain` holds it

    def tell_start(self) -> None:
        self.checkpoints.prune(self.progress)  # a kill may have come before the last pruning
        write_status(self.path, Status(self.progress.step, is_complete=False))

    def newest_checkpoint(self) -> Path | None:
        return self.write_on_main(self.checkpoints.newest)

    def resume_from(self, checkpoint: Path | None, is_return: bool = False) -> None:
        """Put weights, optimizer, metrics and log where they were at a checkpoint; None: at the beginning.

        After a return, rows get other masks and dropout, and the clock continues.
        """
        self.progress = (
            Progress() if checkpoint is None else load_checkpoint(checkpoint, self.objective, self.optimizer)
        )
        if is_return:
            self.progress.num_returns += 1
            self.progress.num_skipped_in_a_row = 0  # the checkpoint may be from between skipped steps
        else:
            self.started = time.monotonic() - self.progress.seconds
        self.seed = self.config.seed + (self.progress.num_returns << 32)
        self.prefetch.seed = self.seed
        self.metrics = MetricSums(self.group, self.progress)
        self.last_saved = None if checkpoint is None else self.progress.step
        self.write_on_main(lambda: self.log.resume_from(self.last_saved, self.progress.last_validated))
        if checkpoint is not None:
            self.log.message(f"Resuming from {checkpoint}.")
        self.first_step = self.last_timed_step = self.progress.step
        self.began_at = self.timed_from = self.saved_at = time.monotonic()

    def close(self) -> None:
        self.prefetch.close()
        self.log.close()

    # Time

    def read_clock(self) -> float:
        """Update the run's seconds; return how much of its time budget is used, 1 or more at its end, 0 without a budget."""
        budget, self.progress.seconds = self.config.budget_seconds, time.monotonic() - self.started
        if budget is None:
            return 0.0
        if self.progress.spent_budget is not None and budget <= self.progress.spent_budget:
            return 1.0  # an earlier start used it up
        at_the_end = self.seconds_of["validate"] + self.seconds_of["save"]
        return self.progress.seconds / (budget - min(budget / 2, at_the_end))

    def is_save_due(self) -> bool:
        """Whether the work since the last checkpoint is as long as `save_minutes`."""
        interval = save_interval(self.config.save_minutes, self.seconds_of["save"] + self.seconds_of["on_checkpoint"])
        return time.monotonic() - self.saved_at >= interval

    def seconds_left(self) -> float | None:
        """An estimate; None before the first step."""
        if self.config.budget_seconds is not None:
            return max(0.0, self.config.budget_seconds - self.progress.seconds)
        num_done = self.progress.step - self.first_step
        per_step = (time.monotonic() - self.began_at) / num_done if num_done else None
        return None if per_step is None else per_step * (self.config.steps - self.progress.step)

    @contextlib.contextmanager
    def outside_of_training(self, what: str) -> Iterator[None]:
        """Note how long something takes, and leave that out of the tokens per second."""
        before = time.monotonic()
        yield
        self.seconds_of[what] = time.monotonic() - before
        self.timed_from += self.seconds_of[what]

    # Data

    def refuse_changed_shards(self) -> None:
        """Every rank calls this. What was trained on other rows must not become a checkpoint."""
        batches = [self.prefetch.batches, *([self.validation.prefetch.batches] if self.validation.can_run else [])]
        change = next((change for each in batches if (change := each.find_change())), None)
        if self.group.agree(change is not None)[0]:
            raise UserError(
                f"{change or 'the shards of another process have changed'}: it was changed while training. The last checkpoint is from "
                "before that; restore the file, then start the same command again"
            )

    # Metrics and progress

    def pop_train_metrics(self) -> dict[str, float]:
        """The means since the last line of the log, and the speed."""
        self.count_skipped()
        now, num_steps = time.monotonic(), self.progress.step - self.last_timed_step
        rate = num_steps * self.config.batch_size * self.config.length / max(1e-9, now - self.timed_from)
        self.timed_from, self.last_timed_step = now, self.progress.step
        metrics = {**self.metrics.pop_means(), "num_skipped": self.progress.num_skipped, "tokens_per_second": rate}
        if self.peak_flops:
            metrics["mfu"] = self.flops_per_token * rate / (self.peak_flops * self.group.world_size)
        return {**metrics, "seconds": self.progress.seconds}

    def update_progress(self) -> None:
        """Bring `progress` up to date for a checkpoint."""
        self.count_skipped()
        self.progress.sums = self.metrics.gather()
        self.progress.seconds = time.monotonic() - self.started
        self.progress.spent_budget = self.config.budget_seconds if self.budget_used == 1.0 else None

    def count_skipped(self) -> None:
        self.progress.num_skipped = int(self.metrics.num_skipped.item())
        self.progress.num_skipped_in_a_row = int(self.metrics.num_in_a_row.item())


def resolve_settings(
    config: PretrainConfig,
    data: DataDescription,
    group: ProcessGroup,
    before: StoredConfig | None,
    custom: nn.Module | None,
) -> tuple[PretrainConfig, dict[str, nn.Module]]:
    """The settings with nothing left open, and the existing networks that a new run starts from."""
    existing: dict[str, nn.Module] = {}
    is_custom = custom is not None
    if is_custom and config.init_embeddings == "counts":
        raise UserError("init_embeddings=counts and an objective of your own: set its word table yourself")
    if is_custom and config.init_attention == "neighbours":
        raise UserError(
            "init_attention=neighbours and an objective of your own: call attend_to_neighbours of electrakit.model.neighbours"
        )
    if is_custom and (place := config.init_discriminator or config.init_generator):
        raise UserError(
            f"{place} and an objective of your own: load the weights into your objective's networks yourself"
        )
    has_init = config.init_discriminator is not None or config.init_generator is not None
    if before is not None:
        if has_init:  # the weights are in the checkpoint, their sizes in config.json
            networks = {name: getattr(before.settings, name) for name in ("discriminator", "generator")}
            config = replace(config, **networks)
        if config.micro_batch is None and before.num_processes == group.world_size:
            # Micro-batches of another size would be rounded differently.
            config = replace(config, micro_batch=before.settings.micro_batch)
    elif has_init:
        # A preset for longer rows must not refuse a model for short ones.
        config, existing = initial_weights.load_existing(replace(config, length=min(config.length, data.length)))
    config = initial_weights.fit_to_shards(config, data, is_custom)
    config = hardware_choices.choose_precision_and_compiler(
        config, group, custom, None if before is None else before.settings
    )
    if config.micro_batch is None:
        all_rows = -(-config.batch_size // group.world_size)
        num_rows = all_rows if is_custom else initial_weights.choose_micro_batch(config, group)
        config = replace(config, micro_batch=group.broadcast(num_rows))
    return config, existing


def begin_run(run: Path, config: PretrainConfig, data: DataDescription, group: ProcessGroup) -> None:
    """Write the settings and the environment of a start."""
    run_folder(run).own(layout.CHECKPOINTS)
    (run / layout.CHECKPOINTS).mkdir(exist_ok=True)  # the first one may come in hours
    run_folder(run).own(layout.CONFIG_FILE)
    write_config(run, config, data, group.world_size)
    write_environment(run, hardware_choices.describe_environment(group))


def save_interval(save_minutes: float | None, save_seconds: float) -> float:
    """Seconds of work between two checkpoints: longer than was asked for where saving would take more than its share."""
    if save_minutes is None:
        return math.inf
    return max(60 * save_minutes, save_seconds * (1 / MAX_SAVING_SHARE - 1))


def checkpoint_bytes(objective: nn.Module, optimizer: RunOptimizer) -> int:
    """About: a checkpoint has the networks twice, for resuming and for transformers."""
    tensors = [*state_once(objective).values()] * 2 + [*optimizer.state().values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

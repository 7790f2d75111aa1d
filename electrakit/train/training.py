"""Settings in, a run that is going on out: networks, optimizer, rows, log and checkpoints, and how far it is."""

import contextlib
import math
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from electrakit.data.batches import Batches
from electrakit.errors import UserError
from electrakit.loading import one_line
from electrakit.model.counts import useful_flops
from electrakit.model.tie import state_once
from electrakit.objective.output import Output
from electrakit.pretrain_config import PretrainConfig
from electrakit.train import machine, run_folder, start
from electrakit.train.checkpoint import Checkpoints, Progress, load
from electrakit.train.distributed import Team, wrapped
from electrakit.train.feed import Feed, Piece
from electrakit.train.figures import Figures
from electrakit.train.log import Log
from electrakit.train.optim import Optimizer
from electrakit.train.validation import Validation

DISK = 100e6  # bytes per second that a checkpoint is thought to be written with before one was


class Training:
    """All parts of a run, as they were at its newest checkpoint, or at the beginning."""

    def __init__(
        self,
        config: PretrainConfig,
        objective: nn.Module | None,
        team: Team,
        on_checkpoint: Callable[[Path], Any] | None = None,
    ) -> None:
        import transformers  # noqa: F401  # seconds, which are not to be those of the first checkpoint

        assert config.data is not None and config.run is not None
        self.path, self.team, self.on_checkpoint = config.run, team, on_checkpoint
        shards = config.data
        self.tokenizer = shards / "tokenizer"
        data = run_folder.describe_data(shards)
        self.checkpoints = Checkpoints(self.path, config.keep_last, config.milestones)
        newest, is_custom = self.newest_checkpoint(), objective is not None
        before = None if newest is None else run_folder.read_config(self.path)
        self.config, existing = resolve(config, data, team, before, is_custom)
        config = self.config
        if before is not None:
            run_folder.check_fits(self.path, before, self.config, data)

        if objective is None:
            objective = start.new_objective(self.config, data["special_ids"], existing)
        # fsdp moves what it has divided
        self.objective = objective.train() if config.fsdp else objective.to(team.device).train()
        if config.recompute:
            start.recompute_activations(objective)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        news = machine.make_fast(objective, config, team)
        # the objective, as the team computes it
        self.module = wrapped(objective, team, fsdp=config.fsdp, has_unused=is_custom)
        self.optimizer = Optimizer(objective, config.optim)
        self.precision = torch.autocast(team.device.type, torch.bfloat16, enabled=config.precision == "bf16")

        place: dict[str, Any] = {"rank": team.rank, "world_size": team.size, "micro_batch": self.config.micro_batch}
        batches = Batches(shards, config.batch_size, seed=config.seed, verify=team.is_first, **place)
        self.feed = Feed(batches, config.seed, team)
        self.validation = Validation(self.config, team)
        self.peak_flops = machine.find_peak_flops(team) if config.precision == "bf16" and not is_custom else None
        self.flops_per_token = useful_flops(config) / config.length
        self.share_of_budget: float | None = None
        # what a run by the clock keeps free for its end
        self.seconds_of = {"validate": 0.0, "save": max(1.0, bytes_of_checkpoint(objective, self.optimizer) / DISK)}

        if team.is_first:
            self.checkpoints.clean()
            run_folder.write_config(self.path, self.config, data, team.size)
            run_folder.write_environment(self.path, team)
        self.log = Log(self.path, self.config, is_silent=not team.is_first)
        for text in news:
            self.log.say(text, "yellow")
        self.go_on_from(newest)
        if team.is_first:
            self.checkpoints.prune(self.progress)  # a kill may have come in between
            run_folder.write_status(run_folder.Run(self.path, self.progress.step, is_complete=False))

    def newest_checkpoint(self) -> Path | None:
        return self.team.share(self.checkpoints.newest() if self.team.is_first else None)

    def go_on_from(self, checkpoint: Path | None, num_returns: int = 0) -> None:
        """Weights, optimizer, figures and log as they were then; `num_returns` more than then."""
        self.progress = Progress() if checkpoint is None else load(checkpoint, self.objective, self.optimizer)
        self.progress.num_returns += num_returns
        if num_returns:
            self.progress.num_skipped_in_a_row = 0  # the checkpoint may be from between them
        # what failed once is not tried again in the same way
        self.seed = self.config.seed + (self.progress.num_returns << 32)
        self.feed.seed = self.seed
        self.figures = Figures(self.team, self.progress)
        self.last_saved = None if checkpoint is None else self.progress.step
        self.log.go_on_from(self.last_saved, self.progress.last_validated)
        if checkpoint is not None:
            self.log.say(f"Going on from {checkpoint}.")
        if not num_returns:  # the clock does not go back
            self.started = time.monotonic() - self.progress.seconds
        self.first_step = self.last_timed_step = self.progress.step
        self.began_at = self.timed_from = time.monotonic()

    def close(self) -> None:
        self.feed.close()
        self.log.close()

    def compute(self, module: nn.Module, piece: Piece) -> Output:
        """What the objective, or the team's wrapper of it, says of a micro-batch. If the compiler fails, only its own part ends."""
        with self.precision:
            try:
                return module(piece.ids, piece.keys)
            except RuntimeError as error:
                if not self.config.compile or not machine.is_of_compiler(error):
                    raise
                self.log.say(f"Going on without compiling: {one_line(error)}", "bold yellow")
                machine.stop_compiling(self.objective)
                return module(piece.ids, piece.keys)

    # --- when to stop ----------------------------------------------------------------------------------------------------

    def should_stop(self, is_asked: bool) -> bool:
        """Whether the run is over, or anybody in the team was asked to stop."""
        budget, self.progress.seconds = self.config.budget_seconds, time.monotonic() - self.started
        at_the_end = self.seconds_of["validate"] + self.seconds_of["save"]
        share = 0.0 if budget is None else self.progress.seconds / (budget - min(budget / 2, at_the_end))
        if budget is not None and self.progress.spent_budget is not None and budget <= self.progress.spent_budget:
            share = 1.0  # it came to its end before
        is_asked, share = self.team.agree(is_asked, share)
        self.share_of_budget = None if budget is None else min(1.0, share)
        self.log.advance(self.progress.step, self.seconds_left())
        return is_asked or self.is_over

    @property
    def is_over(self) -> bool:
        if self.config.budget is not None:
            return self.share_of_budget == 1.0
        return self.progress.step >= self.config.steps

    def seconds_left(self) -> float | None:
        """Until the end, as far as can be told."""
        if self.config.budget_seconds is not None:
            return max(0.0, self.config.budget_seconds - self.progress.seconds)
        num_done = self.progress.step - self.first_step
        per_step = (time.monotonic() - self.began_at) / num_done if num_done else None
        return None if per_step is None else per_step * (self.config.steps - self.progress.step)

    def is_due(self, interval: int) -> bool:
        return self.progress.step % interval == 0

    # --- what is written -------------------------------------------------------------------------------------------------

    def must_look(self) -> bool:
        """Whether the device is waited for at this step."""
        intervals = (self.config.log_every, self.config.valid_every, self.config.save_every)
        is_milestone = self.progress.step in self.config.milestones
        return self.team.device.type == "cpu" or is_milestone or any(map(self.is_due, intervals))

    def count_skipped(self) -> None:
        """How many steps had no finite gradient."""
        self.progress.num_skipped = int(self.figures.num_skipped.item())
        self.progress.num_skipped_in_a_row = int(self.figures.num_in_a_row.item())

    def write_log(self) -> None:
        """The means since the last line."""
        self.count_skipped()
        now, num_steps = time.monotonic(), self.progress.step - self.last_timed_step
        rate = num_steps * self.config.batch_size * self.config.length / max(1e-9, now - self.timed_from)
        self.timed_from, self.last_timed_step = now, self.progress.step
        figures = {**self.figures.means(), "num_skipped": self.progress.num_skipped, "tokens_per_second": rate}
        if self.peak_flops:
            figures["mfu"] = self.flops_per_token * rate / (self.peak_flops * self.team.size)
        self.log.write("train", self.progress.step, {**figures, "seconds": self.progress.seconds})

    def validate(self) -> bool:
        """Measure the objective on the valid split; whether it is the best so far."""
        with self.outside_of_training("validate"):
            figures = self.validation(self.objective, self.compute)
        self.progress.last_validated = self.progress.step
        if not figures:
            if self.progress.step == 0:
                self.log.say(
                    f"{self.config.data} has too few valid rows: no validation (prepare with --valid 0.01)", "yellow"
                )
            return False
        self.log.write("valid", self.progress.step, figures)
        best = self.progress.best_loss
        is_best = math.isfinite(figures["loss"]) and (best is None or figures["loss"] < best)
        if is_best and self.progress.step > 0:  # there is no checkpoint of the beginning
            self.progress.best_step, self.progress.best_loss = self.progress.step, figures["loss"]
        return is_best and self.progress.step > 0

    def save(self) -> None:
        """Write a checkpoint, then tell whoever wants to know."""
        self.count_skipped()
        self.progress.sums = self.figures.gather()
        self.progress.seconds = time.monotonic() - self.started
        self.progress.spent_budget = self.config.budget_seconds if self.share_of_budget == 1.0 else None
        with self.outside_of_training("save"):
            self.log.sync()
            path = self.checkpoints.save(self.progress, self.objective, self.optimizer, self.tokenizer, self.team)
            machine.give_back_memory()
        self.last_saved = self.progress.step
        with self.outside_of_training("tell"):
            self.team.first_does(lambda: self.tell(path))

    def tell(self, path: Path) -> None:
        """Call on_checkpoint, the function and the command; their failures are reported, and nothing more."""
        try:
            if self.on_checkpoint is not None:
                self.on_checkpoint(path)
            if self.config.on_checkpoint is not None:
                command = self.config.on_checkpoint.replace("{path}", shlex.quote(str(path)))
                subprocess.run(command, shell=True, check=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever it is, sys.exit too, it is not ours
            self.log.say(f"on_checkpoint failed for {path}: {type(error).__name__}: {error}", "bold yellow")

    @contextlib.contextmanager
    def outside_of_training(self, what: str) -> Iterator[None]:
        """Time that is not the step's."""
        before = time.monotonic()
        yield
        self.seconds_of[what] = time.monotonic() - before
        self.timed_from += self.seconds_of[what]


def resolve(
    config: PretrainConfig, data: dict[str, Any], team: Team, before: run_folder.Stored | None, is_custom: bool
) -> tuple[PretrainConfig, dict[str, nn.Module]]:
    """The settings with nothing left open, and the existing networks that a new run starts from."""
    existing: dict[str, nn.Module] = {}
    if is_custom and (place := config.init_discriminator or config.init_generator):
        raise UserError(
            f"{place} and an objective of your own: load the weights into your objective's networks yourself"
        )
    has_init = config.init_discriminator is not None or config.init_generator is not None
    if before is not None:
        if has_init:  # the weights are in the checkpoint, their sizes in config.json
            networks = {name: getattr(before.settings, name) for name in ("discriminator", "generator")}
            config = replace(config, **networks)
        if config.micro_batch is None and before.num_processes == team.size:
            # other pieces would be rounded in another way
            config = replace(config, micro_batch=before.settings.micro_batch)
    elif has_init:
        # a model for short rows shall not be measured by a preset's long ones
        config, existing = start.load_existing(replace(config, length=min(config.length, data["length"])))
    config = start.fitted(config, data, is_custom)
    config = machine.resolved(config, team, is_custom, None if before is None else before.settings)
    if config.micro_batch is None:
        rows = -(-config.batch_size // team.size) if is_custom else start.choose_micro_batch(config, team)
        config = replace(config, micro_batch=team.share(rows))
    return config, existing


def bytes_of_checkpoint(objective: nn.Module, optimizer: Optimizer) -> int:
    """About: the networks are in it twice, for us and for transformers."""
    tensors = [*state_once(objective).values()] * 2 + [*optimizer.state().values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

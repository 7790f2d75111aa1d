"""Settings in, a run that is going on out: networks, optimizer, rows, log and checkpoints, and how far it is."""

import contextlib
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
from electrakit.model.counts import flops_per_token
from electrakit.pretrain_config import PretrainConfig, from_json, with_special_ids
from electrakit.train import run_folder, start
from electrakit.train.checkpoint import Checkpoints, Progress, load
from electrakit.train.distributed import Team, wrapped
from electrakit.train.feed import Feed
from electrakit.train.figures import Figures
from electrakit.train.log import Log
from electrakit.train.optim import Optimizer
from electrakit.train.validation import Validation

PEAK_FLOPS = {  # of matrix products in bf16, by a part of the GPU's name (makers' data sheets, without sparsity)
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


class Training:
    """All parts of a run, as they were at its newest checkpoint, or at the beginning."""

    def __init__(
        self,
        config: PretrainConfig,
        objective: nn.Module | None,
        team: Team,
        on_checkpoint: Callable[[Path], Any] | None = None,
    ) -> None:
        assert config.data is not None and config.run is not None
        self.path, self.team, self.on_checkpoint = config.run, team, on_checkpoint
        self.tokenizer = config.data / "tokenizer"
        data = run_folder.describe_data(config.data)
        self.checkpoints = Checkpoints(self.path, config.keep_last, config.milestones)
        newest = self.newest_checkpoint()
        self.config, existing = resolve(
            config, data, team, is_started=newest is not None, is_custom=objective is not None
        )
        if newest is not None:
            run_folder.check_fits(self.path, self.config, data)

        is_custom = objective is not None
        if objective is None:
            objective = start.new_objective(self.config, data["special_ids"], existing)
        self.objective = objective.to(team.device).train()
        if config.recompute:
            start.recompute_activations(objective)
        if config.compile:
            objective.compile()
        self.module = wrapped(
            objective, team, fsdp=config.fsdp, has_unused=is_custom
        )  # the objective, as the team computes it
        self.optimizer = Optimizer(objective, config.optim)
        self.precision = torch.autocast(team.device.type, torch.bfloat16, enabled=config.precision == "bf16")

        place: dict[str, Any] = {"rank": team.rank, "world_size": team.size, "micro_batch": self.config.micro_batch}
        self.feed = Feed(
            Batches(config.data, config.batch_size, seed=config.seed, verify=team.is_first, **place), config.seed, team
        )
        self.validation = Validation(self.config, team)
        self.peak_flops = find_peak_flops(team) if config.precision == "bf16" else None
        self.flops_per_token = (
            3 / 2 * sum(flops_per_token(self.config).values())
        )  # the paper counts a backward pass as one forward pass
        self.share_of_budget: float | None = None
        self.seconds_of: dict[str, float] = {
            "validate": 0.0,
            "save": 1.0,
        }  # what a run by the clock keeps free for its end

        if team.is_first:
            self.checkpoints.clean()
            run_folder.write_config(self.path, self.config, data, team.size)
            run_folder.write_environment(self.path, team)
        self.log = Log(self.path, self.config, is_silent=not team.is_first)
        self.go_on_from(newest)

    def newest_checkpoint(self) -> Path | None:
        return self.team.share(self.checkpoints.newest() if self.team.is_first else None)

    def go_on_from(self, checkpoint: Path | None) -> None:
        """Weights, optimizer, figures and log as they were then."""
        self.progress = Progress() if checkpoint is None else load(checkpoint, self.objective, self.optimizer)
        self.figures = Figures(self.team, self.progress.sums)
        self.log.go_on_from(None if checkpoint is None else self.progress.step)
        if checkpoint is not None:
            self.log.say(f"Going on from {checkpoint}.")
        self.last_saved = self.last_validated = None if checkpoint is None else self.progress.step
        self.started = time.monotonic() - self.progress.seconds
        self.first_step = self.last_timed_step = self.progress.step
        self.began_at = self.timed_from = time.monotonic()

    def close(self) -> None:
        self.feed.close()
        self.log.close()

    # --- when to stop ----------------------------------------------------------------------------------------------------

    def should_stop(self, is_asked: bool) -> bool:
        """Whether the run is over, or anybody in the team was asked to stop."""
        budget, self.progress.seconds = self.config.budget_seconds, time.monotonic() - self.started
        share = (
            0.0 if budget is None else self.progress.seconds / (budget - min(budget / 2, sum(self.seconds_of.values())))
        )
        is_asked, share = self.team.agree(is_asked, share)
        self.share_of_budget = None if budget is None else min(1.0, share)
        self.log.advance(self.progress.step, self.seconds_left())
        return is_asked or self.is_over

    @property
    def is_over(self) -> bool:
        return self.progress.step >= self.config.steps or self.share_of_budget == 1.0

    def seconds_left(self) -> float | None:
        """Until the end, as far as can be told."""
        num_done = self.progress.step - self.first_step
        per_step = (time.monotonic() - self.began_at) / num_done if num_done else None
        by_steps = per_step * (self.config.steps - self.progress.step) if per_step else float("inf")
        by_clock = (self.config.budget_seconds or float("inf")) - self.progress.seconds
        return min(by_steps, by_clock) if min(by_steps, by_clock) < float("inf") else None

    def is_due(self, interval: int) -> bool:
        return self.progress.step % interval == 0

    # --- what is written -------------------------------------------------------------------------------------------------

    def count_skipped(self) -> int:
        """Steps in a row, up to this one, that had no finite gradient."""
        self.progress.num_skipped += self.figures.take_skipped()
        return self.figures.num_skipped_in_a_row

    def write_log(self) -> None:
        """The means since the last line."""
        now, num_steps = time.monotonic(), self.progress.step - self.last_timed_step
        rate = num_steps * self.config.batch_size * self.config.length / max(1e-9, now - self.timed_from)
        self.timed_from, self.last_timed_step = now, self.progress.step
        figures = {**self.figures.means(), "num_skipped": self.progress.num_skipped, "tokens_per_second": rate}
        if self.peak_flops:
            figures["mfu"] = self.flops_per_token * rate / (self.peak_flops * self.team.size)
        self.log.write("train", self.progress.step, {**figures, "seconds": self.progress.seconds})

    def validate(self) -> bool:
        """Measure the objective on the valid split; whether it is the best so far."""
        with self.outside_of_training("validate"), self.precision:
            figures = self.validation(self.objective)
        self.last_validated = self.progress.step
        if not figures:
            return False
        self.log.write("valid", self.progress.step, figures)
        is_best = self.progress.best_loss is None or figures["loss"] < self.progress.best_loss
        if is_best:
            self.progress.best_step, self.progress.best_loss = self.progress.step, figures["loss"]
        return is_best and self.progress.step > 0

    def save(self) -> None:
        """Write a checkpoint, then tell whoever wants to know."""
        with self.outside_of_training("save"):
            self.progress.sums = self.figures.gather()
            path = self.checkpoints.save(self.progress, self.objective, self.optimizer, self.tokenizer, self.team)
            self.last_saved = self.progress.step
            if self.team.is_first:
                self.tell(path)

    def tell(self, path: Path) -> None:
        """Call on_checkpoint, the function and the command; their failures are reported, and nothing more."""
        try:
            if self.on_checkpoint is not None:
                self.on_checkpoint(path)
            if self.config.on_checkpoint is not None:
                subprocess.run(
                    self.config.on_checkpoint.replace("{path}", shlex.quote(str(path))), shell=True, check=True
                )
        except Exception as error:  # whatever it is, it is not ours
            self.log.say(f"on_checkpoint failed for {path}: {type(error).__name__}: {error}", "bold yellow")

    @contextlib.contextmanager
    def outside_of_training(self, what: str) -> Iterator[None]:
        """Time that is not the step's."""
        before = time.monotonic()
        yield
        self.seconds_of[what] = time.monotonic() - before
        self.timed_from += self.seconds_of[what]


def resolve(
    config: PretrainConfig, data: dict[str, Any], team: Team, *, is_started: bool, is_custom: bool
) -> tuple[PretrainConfig, dict[str, nn.Module]]:
    """The settings with nothing left open, and the existing networks that a new run starts from."""
    existing: dict[str, nn.Module] = {}
    has_init = config.init_discriminator is not None or config.init_generator is not None
    if is_started:
        assert config.run is not None
        stored = run_folder.read_json(config.run / "config.json")
        before = from_json(stored["settings"])
        if has_init:  # the weights are in the checkpoint, their sizes in config.json
            config = replace(config, discriminator=before.discriminator, generator=before.generator)
        if (
            config.micro_batch is None and stored["processes"] == team.size
        ):  # other pieces would be rounded in another way
            config = replace(config, micro_batch=before.micro_batch)
    elif has_init:
        config, existing = start.load_existing(config)
    config = with_special_ids(config, data["special_ids"]) if is_custom else start.fitted(config, data)
    if config.micro_batch is None:
        rows = -(-config.batch_size // team.size) if is_custom else start.choose_micro_batch(config, team)
        config = replace(config, micro_batch=team.share(rows))
    return config, existing


def find_peak_flops(team: Team) -> float | None:
    """What the GPU can do at most; None where we do not know it."""
    name = torch.cuda.get_device_name(team.device) if team.device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)

"""Figures in; metrics.jsonl, TensorBoard, wandb and the line on the terminal out."""

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch.utils.tensorboard import SummaryWriter

from electrakit.errors import UserError
from electrakit.pretrain_config import PretrainConfig, to_json
from electrakit.progress import console
from electrakit.train.run_folder import read_metrics

SECONDS_BETWEEN_LINES = 10
SHOWN = {  # what the terminal shows, and how
    "loss": ("loss", ".3f"),
    "mlm_loss": ("mlm", ".3f"),
    "disc_loss": ("disc", ".4f"),
    "disc_auc": ("auc", ".3f"),
    "tokens_per_second": ("tok/s", ",.0f"),
    "mfu": ("mfu", ".0%"),
    "gen_acc": ("gen acc", ".3f"),
    "disc_acc": ("disc acc", ".3f"),
}
WIDTH_OF_BAR = 45  # and of what stands behind it


class Log:
    """Each figure of a step is written once: what was logged after the checkpoint that a run goes on from is cut off first."""

    def __init__(self, run: Path, config: PretrainConfig, is_silent: bool = False) -> None:
        self.run, self.is_silent = run, is_silent
        self.file: Any = None
        self.tensorboard: SummaryWriter | None = None
        self.wandb = start_wandb(config.wandb, run, config) if config.wandb and not is_silent else None
        self.line = Line(config.steps if config.budget is None else None)

    def go_on_from(self, step: int | None) -> None:
        """Begin behind this step; None: at the beginning."""
        if self.is_silent:
            return
        self.close_files()
        path = self.run / "metrics.jsonl"
        kept = [line for line in read_metrics(path) if step is not None and line["step"] <= step]
        temporary = path.with_name(".metrics.jsonl.tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        temporary.replace(path)
        self.file = path.open("a", encoding="utf-8")
        self.tensorboard = SummaryWriter(str(self.run / "tensorboard"), purge_step=0 if step is None else step + 1)

    def write(self, split: str, step: int, figures: dict[str, float]) -> None:
        """`step` updates are done."""
        if self.is_silent:
            return
        numbers = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        self.file.write(json.dumps({"step": step, "split": split, **numbers}) + "\n")
        self.file.flush()
        self.also_write(split, step, figures)
        self.line.show(split, step, figures)

    def also_write(self, split: str, step: int, figures: dict[str, float]) -> None:
        """What others read. It is no reason to stop if they fail: metrics.jsonl has it all."""
        try:
            if self.tensorboard is not None:
                for name, value in figures.items():
                    self.tensorboard.add_scalar(f"{split}/{name}", value, step)
            if self.wandb is not None:
                self.wandb.log({f"{split}/{name}": value for name, value in figures.items()}, step=step)
        except Exception as error:
            self.say(f"no TensorBoard or wandb any more: {type(error).__name__}: {error}", "yellow")
            self.tensorboard = self.wandb = None

    def sync(self) -> None:
        """Before a checkpoint: what was logged until then is on the disk."""
        if not self.is_silent:
            os.fsync(self.file.fileno())

    def advance(self, step: int, seconds_left: float | None) -> None:
        """Where the run is."""
        if not self.is_silent:
            self.line.advance(step, seconds_left)

    def say(self, text: str, style: str = "") -> None:
        """Something that is no figure."""
        if not self.is_silent:
            self.line.print(text, style)

    def close_files(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.tensorboard is not None:
            with contextlib.suppress(OSError):
                self.tensorboard.close()

    def close(self) -> None:
        self.line.close()
        self.close_files()
        if self.wandb is not None:
            self.wandb.finish()


class Line:
    """One live line on a terminal; elsewhere a plain line now and then, and one for each validation."""

    def __init__(self, num_steps: int | None) -> None:
        """None: the clock ends the run."""
        self.num_steps, self.last_print = num_steps, 0.0
        self.seconds_left: float | None = None
        self.bar: Progress | None = None
        self.last_auc: dict[str, float] = {}

    def start(self) -> None:
        if console.is_terminal and self.bar is None:
            place = MofNCompleteColumn() if self.num_steps is not None else TextColumn("step {task.completed:,}")
            columns = (TextColumn("{task.fields[figures]}"), BarColumn(bar_width=12), place)
            self.bar = Progress(*columns, TextColumn("left {task.fields[left]}"), console=console, refresh_per_second=4)
            self.task = self.bar.add_task("", total=self.num_steps, figures="starting", left="?")
            self.bar.start()

    def advance(self, step: int, seconds_left: float | None) -> None:
        self.seconds_left = seconds_left
        self.start()
        if self.bar is not None:
            self.bar.update(self.task, completed=step, left=duration(seconds_left))

    def show(self, split: str, step: int, figures: dict[str, float]) -> None:
        """A line of the log shows the AUC of the last validation: it takes more rows than a step has."""
        if split == "valid":
            self.last_auc = {name: value for name, value in figures.items() if name == "disc_auc"}
        else:
            figures = {**figures, **self.last_auc}
        parts = [f"{label} {figures[name]:{form}}" for name, (label, form) in SHOWN.items() if name in figures]
        text = "  ".join(parts)
        if split != "train":
            self.print(f"step {step:,}  {split}: {text}", "bold")
        elif self.bar is not None:
            while (
                len(text) > console.width - WIDTH_OF_BAR and len(parts) > 1
            ):  # a narrow terminal: the last ones can be missed
                text = "  ".join(parts := parts[:-1])
            self.bar.update(self.task, figures=text)
        elif time.monotonic() - self.last_print > SECONDS_BETWEEN_LINES or step == self.num_steps:
            self.last_print = time.monotonic()
            of_all = "" if self.num_steps is None else f" of {self.num_steps:,}"
            self.print(f"step {step:,}{of_all}  {text}  {duration(self.seconds_left)} left")

    def print(self, text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def duration(seconds: float | None) -> str:
    """3725 -> 1:02:05"""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def start_wandb(project: str, run: Path, config: PretrainConfig) -> Any:
    try:
        import wandb
    except ImportError:
        raise UserError(f"--wandb {project} needs its library; pip install 'electrakit[wandb]'") from None
    place = run / "wandb_id"
    if not place.exists():
        place.write_text(wandb.util.generate_id() + "\n", encoding="utf-8")
    identity = place.read_text(encoding="utf-8").strip()
    return wandb.init(project=project, name=run.name, dir=str(run), id=identity, resume="allow", config=to_json(config))

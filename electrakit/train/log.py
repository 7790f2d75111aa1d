"""Figures in; metrics.jsonl, TensorBoard, wandb and the line on the terminal out."""

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text
from torch.utils.tensorboard import SummaryWriter

from electrakit.errors import UserError
from electrakit.pretrain_config import PretrainConfig, to_json
from electrakit.progress import console
from electrakit.run_files import read_metrics
from electrakit.whole import write_whole

SECONDS_BETWEEN_LINES = 10
# What the terminal shows: the label, and how many digits stand behind the point; the live line has one less. In a narrow one, the
# last of these are missed.
SHOWN = {
    "loss": ("loss", 3),
    "mlm_loss": ("mlm", 3),
    "disc_loss": ("disc", 4),
    "disc_auc": ("auc", 3),
    "tokens_per_second": ("tok/s", 0),
    "gen_acc": ("gen acc", 3),
    "disc_acc": ("disc acc", 3),
    "mfu": ("mfu", 3),
}
WIDTH_OF_BAR = 16


class Log:
    """Each figure of a step is written once: what was logged after the checkpoint that a run goes on from is cut off first."""

    def __init__(self, run: Path, config: PretrainConfig, is_silent: bool = False) -> None:
        self.run, self.is_silent = run, is_silent
        self.file: Any = None
        self.tensorboard: SummaryWriter | None = None
        self.wandb = start_wandb(config.wandb, run, config) if config.wandb and not is_silent else None
        self.line = Line(config.steps if config.budget is None else None)

    def go_on_from(self, step: int | None, last_validated: int | None = None) -> None:
        """Begin behind this step and this validation; None: at the beginning."""
        if self.is_silent:
            return
        self.close_files()
        path = self.run / "metrics.jsonl"
        end = -1 if step is None else step
        ends = {"train": end, "valid": (step or -1) if last_validated is None else last_validated}
        kept = [line for line in read_metrics(path) if line["step"] <= ends.get(line["split"], end)]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self.line.last_auc = auc_of(next((line for line in reversed(kept) if line["split"] == "valid"), {}))
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
        self.step = 0
        self.seconds_left: float | None = None
        self.figures: dict[str, float] = {}
        self.last_auc: dict[str, float] = {}
        self.live: Live | None = None

    def advance(self, step: int, seconds_left: float | None) -> None:
        self.step, self.seconds_left = step, seconds_left
        if console.is_terminal and self.live is None:
            self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4)
            self.live.start()

    def show(self, split: str, step: int, figures: dict[str, float]) -> None:
        """A line of the log shows the AUC of the last validation: it takes more rows than a step has."""
        if split == "valid":
            self.last_auc = auc_of(figures)
            self.print(f"step {step:,}  valid: {'  '.join(described(figures))}", "bold")
            return
        self.figures = {**figures, **self.last_auc}
        is_due = time.monotonic() - self.last_print > SECONDS_BETWEEN_LINES or step == self.num_steps
        if self.live is None and is_due:
            self.last_print = time.monotonic()
            of_all = "" if self.num_steps is None else f" of {self.num_steps:,}"
            figures_and_time = [*described(self.figures), f"{duration(self.seconds_left)} left"]
            self.print("  ".join([f"step {step:,}{of_all}", *figures_and_time]))

    def render(self) -> Text | Table:
        """As many figures as there is room for; if there is more, the number of all steps and a bar."""
        start, end = f"step {self.step:,}", f"{duration(self.seconds_left)} left"
        parts = described({**self.last_auc, **self.figures}, is_short=True)
        while parts and not self.fits(start, *parts, end):
            parts.pop()
        if self.num_steps is not None and self.fits(f"{start}/{self.num_steps:,}", *parts, end):
            start += f"/{self.num_steps:,}"
        line = Text(" ".join([start, *parts, end]), no_wrap=True, overflow="ellipsis")
        if self.num_steps is None or not self.fits(line.plain, " " * WIDTH_OF_BAR):
            return line
        row = Table.grid(padding=(0, 1))
        row.add_row(line, ProgressBar(total=self.num_steps, completed=self.step, width=WIDTH_OF_BAR))
        return row

    def fits(self, *parts: str) -> bool:
        return len(" ".join(parts)) <= console.width

    def print(self, text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


def auc_of(figures: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if name == "disc_auc" and value is not None}


def described(figures: dict[str, float], is_short: bool = False) -> list[str]:
    """Those that are shown, with their labels."""
    parts = []
    for name, (label, num_digits) in SHOWN.items():
        if name in figures:
            value = figures[name]
            if num_digits:
                text = f"{value:.{num_digits - is_short}f}"
            else:
                text = f"{value / 1e3:,.1f}k" if is_short and value >= 1e4 else f"{value:,.0f}"
            parts.append(f"{label} {text}")
    return parts


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
        write_whole(place, f"{wandb.util.generate_id()}\n".encode())
    identity = place.read_text(encoding="utf-8").strip()
    return wandb.init(project=project, name=run.name, dir=str(run), id=identity, resume="allow", config=to_json(config))

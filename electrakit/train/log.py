"""Writes metrics to metrics.jsonl, TensorBoard, wandb and the terminal."""

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from electrakit.common.errors import UserError
from electrakit.common.ownership import free_name
from electrakit.common.progress import SECONDS_BETWEEN_LINES, console, print_message, say_once
from electrakit.common.sync import sync_open
from electrakit.common.words import format_clock
from electrakit.config.pretrain import PretrainConfig
from electrakit.runs import layout
from electrakit.runs.files import MetricsLine, number, read_metrics, run_folder

# What the terminal shows: label and decimal places. The live line has one place less, and drops the last metrics if it is too long.
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
    """Each metric of a step is written once: on resume, lines from after the checkpoint are removed first."""

    def __init__(self, run: Path, config: PretrainConfig, is_silent: bool = False) -> None:
        self.run, self.is_silent = run, is_silent
        self.file: Any = None
        self.waiting = b""  # lines that are not in the file yet
        self.tensorboard: Any = None
        wandb = import_wandb(config.wandb) if config.wandb else None
        self.wandb = None if wandb is None or is_silent else start_wandb(wandb, run, config)
        self.line = TerminalLine(config.steps if config.budget is None else None)

    def resume_from(self, step: int | None, last_validated: int | None = None) -> None:
        """Keep the lines up to this step and this validation; None: keep none."""
        if self.is_silent:
            return
        self.close_files()
        path = self.run / layout.METRICS_FILE
        if step is None and any(line["step"] > 0 for line in read_metrics(self.run)):
            # Its checkpoints are gone, or it was killed before the first one.
            earlier = path.rename(free_name(path))
            self.message(
                f"There is no checkpoint: training begins anew, and the log so far is kept as {earlier}.", "yellow"
            )
        end = -1 if step is None else step
        ends = {"train": end, "valid": (step or -1) if last_validated is None else last_validated}
        kept = [line for line in read_metrics(self.run) if line["step"] <= ends.get(line["split"], end)]
        run_folder(self.run).write(path.name, "".join(json.dumps(line) + "\n" for line in kept).encode())
        self.line.last_auc = auc_of(next((line for line in reversed(kept) if line["split"] == "valid"), {}))
        self.file, self.waiting = path.open("a+b", buffering=0), b""
        self.open_tensorboard(0 if step is None else step + 1, kept)

    def open_tensorboard(self, first_step: int, lines: list[MetricsLine]) -> None:
        """Optional: metrics.jsonl has the same. If it fails, training continues. lines: so far, for a folder that is new, or gone."""
        place = self.run / layout.TENSORBOARD
        try:
            from torch.utils.tensorboard import SummaryWriter

            lines = [] if place.is_dir() else lines
            run_folder(self.run).own(place.name)
            self.tensorboard = SummaryWriter(str(place), purge_step=first_step)
            for line in lines:
                numbers = {name: number(value) for name, value in line.items() if name not in ("step", "split")}
                self.add_scalars(line["split"], line["step"], numbers)
        except ImportError:
            return
        except Exception as error:  # such as a path that is not UTF-8
            self.message(f"no TensorBoard: {type(error).__name__}: {error}", "yellow")

    def write(self, split: str, step: int, metrics: dict[str, float]) -> None:
        """A line of metrics after `step` updates."""
        if self.is_silent:
            return
        numbers = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self.waiting += (json.dumps({"step": step, "split": split, **numbers}) + "\n").encode()
        try:
            self.write_waiting()
        except OSError as error:  # such as a full disk
            say_once(
                f"cannot write {self.run / layout.METRICS_FILE} ({error.strerror}); its lines wait for the next checkpoint"
            )
        self.also_write(split, step, metrics)
        self.line.show(split, step, metrics)

    def write_waiting(self) -> None:
        """Straight to the file: what a full disk did not take stays, and is tried again."""
        while self.waiting:
            self.waiting = self.waiting[self.file.write(self.waiting) :]

    def content(self) -> bytes:
        """All lines of metrics.jsonl, also when the file was removed."""
        self.file.seek(0)  # where it is written does not change: at the end
        return self.file.read() + self.waiting

    def also_write(self, split: str, step: int, metrics: dict[str, float]) -> None:
        """TensorBoard and wandb. If they fail, training continues: metrics.jsonl has everything."""
        try:
            # If its folder was removed, its thread would print an error.
            if self.tensorboard is not None and (self.run / layout.TENSORBOARD).is_dir():
                self.add_scalars(split, step, metrics)
            if self.wandb is not None:
                self.wandb.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)
        except Exception as error:
            self.message(f"no TensorBoard or wandb any more: {type(error).__name__}: {error}", "yellow")
            self.tensorboard = self.wandb = None

    def add_scalars(self, split: str, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.tensorboard.add_scalar(f"{split}/{name}", value, step)

    def sync(self) -> None:
        """Bring all lines to the disk, before a checkpoint."""
        if self.is_silent:
            return
        try:
            self.write_waiting()
            sync_open(self.file.fileno(), self.run / layout.METRICS_FILE)
        except OSError as error:
            raise UserError(
                f"cannot write {self.run / layout.METRICS_FILE} ({error.strerror}); earlier checkpoints are untouched: make room, "
                "then start the same command again"
            ) from None

    def advance(self, step: int, seconds_left: float | None) -> None:
        """Update the progress bar."""
        if not self.is_silent:
            self.line.advance(step, seconds_left)

    def message(self, text: str, style: str = "") -> None:
        if not self.is_silent:
            print_message(text, style)

    def close_files(self) -> None:
        for file in (self.file, self.tensorboard):
            if file is not None:
                with contextlib.suppress(OSError):  # a checkpoint has brought its lines to the disk
                    file.close()

    def close(self) -> None:
        self.line.close()
        self.close_files()
        if self.wandb is not None:
            self.wandb.finish()


@contextlib.contextmanager
def without_tracebacks_of_tensorboard() -> Iterator[None]:
    """Its thread tells the log what it could not write, such as on a full disk, and raises it as well, which Python would print."""
    before = threading.excepthook

    def hook(failure: threading.ExceptHookArgs) -> None:
        if not (
            isinstance(failure.exc_value, OSError)
            and type(failure.thread).__module__.startswith(("tensorboard.", "torch."))
        ):
            before(failure)

    threading.excepthook = hook
    try:
        yield
    finally:
        if threading.excepthook is hook:
            threading.excepthook = before


class TerminalLine:
    """One live line on a terminal; elsewhere a plain line now and then, and one for each validation."""

    def __init__(self, num_steps: int | None) -> None:
        """num_steps: None if a time budget ends the run."""
        self.num_steps, self.last_print = num_steps, 0.0
        self.step = 0
        self.seconds_left: float | None = None
        self.metrics: dict[str, float] = {}
        self.last_auc: dict[str, float] = {}
        self.live: Live | None = None

    def advance(self, step: int, seconds_left: float | None) -> None:
        self.step, self.seconds_left = step, seconds_left
        if console.is_terminal and self.live is None:
            self.live = Live(get_renderable=self.render, console=console, refresh_per_second=4)
            self.live.start()

    def show(self, split: str, step: int, metrics: dict[str, float]) -> None:
        """Training lines show the AUC of the last validation: a step has too few rows for one."""
        if split == "valid":
            self.last_auc = auc_of(metrics)
            print_message(f"step {step:,}  valid: {'  '.join(format_metrics(metrics))}", "bold")
            return
        self.metrics = {**metrics, **self.last_auc}
        is_due = time.monotonic() - self.last_print > SECONDS_BETWEEN_LINES or step == self.num_steps
        if self.live is None and is_due:
            self.last_print = time.monotonic()
            of_all = "" if self.num_steps is None else f" of {self.num_steps:,}"
            metrics_and_time = [*format_metrics(self.metrics), f"{format_clock(self.seconds_left)} left"]
            print_message("  ".join([f"step {step:,}{of_all}", *metrics_and_time]))

    def render(self) -> Text | Table:
        """As many metrics as fit; then, if there is room, the number of all steps and a bar."""
        start, end = f"step {self.step:,}", f"{format_clock(self.seconds_left)} left"
        parts = format_metrics({**self.last_auc, **self.metrics}, is_short=True)
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

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()


def auc_of(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name == "disc_auc" and value is not None}


def format_metrics(metrics: dict[str, float], is_short: bool = False) -> list[str]:
    """The metrics that are shown, with their labels."""
    parts = []
    for name, (label, num_digits) in SHOWN.items():
        if name in metrics:
            value = metrics[name]
            if num_digits:
                text = f"{value:.{num_digits - is_short}f}"
            else:
                text = f"{value / 1e3:,.1f}k" if is_short and value >= 1e4 else f"{value:,.0f}"
            parts.append(f"{label} {text}")
    return parts


def import_wandb(project: str) -> Any:
    """On every rank: if it is missing, all of them say so."""
    try:
        import wandb
    except ImportError:
        raise UserError(f"--wandb {project} needs its library; pip install 'electrakit[wandb]'") from None
    return wandb


def start_wandb(wandb: Any, run: Path, config: PretrainConfig) -> Any:
    folder, place = run_folder(run), run / layout.WANDB_ID
    if not place.exists():
        folder.write(place.name, f"{wandb.util.generate_id()}\n".encode())
    identity = place.read_text(encoding="utf-8").strip()
    folder.own(layout.WANDB)
    settings: dict[str, Any] = {"name": run.name, "dir": str(run), "config": config.to_json()}
    return wandb.init(project=config.wandb, id=identity, resume="allow", **settings)

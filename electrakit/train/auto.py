"""Measures the machine, reads the corpus, and makes the settings of `electra pretrain auto`; a started run keeps its own."""

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from electrakit.common.errors import UserError
from electrakit.common.words import counted, format_number
from electrakit.config.pretrain import PretrainChanges, PretrainConfig, override
from electrakit.data.manifest import read_manifest
from electrakit.model.auto import ASKED, USEFUL_SHARE, Choice, choose
from electrakit.runs import layout
from electrakit.runs.settings import read_config
from electrakit.train.distributed import join_process_group
from electrakit.train.hardware_choices import has_bf16, set_threads

WIDTHS = {"cpu": 1024, "cuda": 8192}  # of the square matrices that are multiplied
TIMED_SECONDS, MIN_TIMED = 1.0, 3
CHOSEN_WITH = ("vocab_size", "length", "batch_size")  # settings that `choose` takes


def choose_recipe(**changes: Unpack[PretrainChanges]) -> Choice:
    """The settings for a time budget on this machine, as `electra pretrain auto` chooses them, and the reasons.

    `choose_recipe(data="shards/mine", run="runs/mine", budget="1h").config` is what `pretrain` takes. `budget` is required; without
    `data`, a corpus that is large enough is assumed. Changes by field name win, as with any preset. A run that was started is not decided
    again: its stored settings are taken. Under torchrun every process must call it; all get the same answer.
    """
    run = changes.get("run")
    if run is not None and layout.newest_checkpoint(Path(run)) is not None:
        # The micro-batch is chosen anew if the number of processes has changed.
        stored = replace(read_config(Path(run)).settings, micro_batch=None)
        return Choice(override(stored, changes), (f"resume: {run} was started before; its settings are kept",))
    asked = {name: value for name, value in changes.items() if name in ASKED and name not in CHOSEN_WITH}
    given = override(PretrainConfig(), asked)
    if given.budget_seconds is None:
        raise UserError("auto needs a budget, the time that training may take: add --budget 1h, or 30m, or 2d")
    known: dict[str, Any] = {name: value for name, value in changes.items() if name in CHOSEN_WITH}
    if given.data is not None:
        manifest = read_manifest(given.data)
        num_tokens = manifest.splits["train"].rows * manifest.length
        known |= {"num_tokens": num_tokens, "vocab_size": manifest.vocab_size, "length": manifest.length}
    flops_per_second, reason = useful_speed(given)
    choice = choose(given.budget_seconds, flops_per_second, **known)
    return Choice(override(choice.config, changes), (reason, *choice.reasons))


def useful_speed(config: PretrainConfig) -> tuple[float, str]:
    """FLOPs per second that training reaches, of all processes together, and the words for it."""
    with join_process_group() as group:
        is_half = config.precision == "bf16" or (
            config.precision == "auto" and not config.plain and has_bf16(group.device)
        )
        measured = measure_speed(group.device, torch.bfloat16 if is_half else torch.float32)
        total = float(group.sum(torch.tensor([measured], dtype=torch.float64)))
        share, num_processes = USEFUL_SHARE[group.device.type], group.world_size
    is_gpu = group.device.type == "cuda"
    where = torch.cuda.get_device_name(group.device) if is_gpu else counted(torch.get_num_threads(), "core")
    where += f" in each of {num_processes} processes" if num_processes > 1 else ""
    precision = "bf16" if is_half else "fp32"
    return total * share, (
        f"speed: {format_number(total)}FLOP/s of matrix products in {precision} on {where}, "
        f"of which training uses about {share:.0%}"
    )


def measure_speed(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs per second of large matrix products, the median of about a second."""
    if device.type == "cpu":
        set_threads()
    width = WIDTHS[device.type]
    matrix = torch.ones(width, width, device=device, dtype=dtype)
    seconds: list[float] = []
    product(matrix)  # the first loads libraries
    while sum(seconds) < TIMED_SECONDS or len(seconds) < MIN_TIMED:
        started = time.perf_counter()
        product(matrix)
        seconds.append(time.perf_counter() - started)
    return 2 * width**3 / statistics.median(seconds)


def product(matrix: torch.Tensor) -> None:
    """Computed completely when it returns."""
    torch.mm(matrix, matrix)
    if matrix.is_cuda:
        torch.cuda.synchronize(matrix.device)

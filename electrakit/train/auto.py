"""Measures the machine, reads the corpus, and makes the settings of `electra pretrain auto`; a started run keeps its own."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch

from electrakit.common.errors import UserError
from electrakit.common.words import counted, format_number
from electrakit.config.pretrain import PretrainChanges, PretrainConfig, override
from electrakit.data.manifest import read_manifest
from electrakit.model.auto import ASKED, DEFAULTS, STEPS_SHARE, Choice, Size, choose, recipe
from electrakit.model.counts import useful_flops
from electrakit.objective.build import build_objective
from electrakit.objective.randomness import row_keys
from electrakit.runs import layout
from electrakit.runs.settings import read_config
from electrakit.train import hardware_choices
from electrakit.train.distributed import ProcessGroup, join_process_group
from electrakit.train.optim import RunOptimizer

TIMED_TOKENS = {"cpu": 4096, "cuda": 8192}  # in a step
TIMED_SECONDS, MIN_TIMED = 2.0, 3
SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}  # of the random tokens
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
    choice, reason = choose_by_speed(given, known)
    return Choice(override(choice.config, changes), (reason, *choice.reasons))


def choose_by_speed(given: PretrainConfig, known: dict[str, Any]) -> tuple[Choice, str]:
    """The choice for this machine, and the words for its speed."""
    assert given.budget_seconds is not None
    measured: dict[Size, float] = {}
    vocab_size, length = (known.get(name, DEFAULTS[name]) for name in ("vocab_size", "length"))
    with join_process_group() as group:

        def speed_of(size: Size) -> float:
            config = override(recipe(size, vocab_size, length), {"precision": given.precision, "plain": given.plain})
            speed = torch.tensor([measure_speed(config, group)], dtype=torch.float64)
            measured[size] = float(group.sum(speed))
            return measured[size] * STEPS_SHARE

        choice = choose(given.budget_seconds, speed_of, **known)
        is_gpu, num_processes = group.device.type == "cuda", group.world_size
        where = torch.cuda.get_device_name(group.device) if is_gpu else counted(torch.get_num_threads(), "core")
    where += f" in each of {num_processes} processes" if num_processes > 1 else ""
    speeds = ", ".join(f"{format_number(speed)}FLOP/s for {size}" for size, speed in measured.items())
    return choice, (
        f"speed: steps of training reach {speeds}, on {where}; steps are taken to be {STEPS_SHARE:.0%} of the time"
    )


def measure_speed(config: PretrainConfig, group: ProcessGroup) -> float:
    """FLOPs per second of useful matrix products in steps of training, on random tokens: the fastest, since other work may slow some.

    Not compiled, which would take minutes, and without the exchange between processes.
    """
    num_rows = max(1, TIMED_TOKENS[group.device.type] // config.length)
    config = override(config, {"batch_size": num_rows, "micro_batch": num_rows})
    config = replace(hardware_choices.choose_precision_and_compiler(config, group, None), compile=False)
    with torch.random.fork_rng(devices=[]):
        seconds = time_steps(config, group)
    hardware_choices.give_back_memory()  # the micro-batch is chosen by what is free
    if group.device.type == "cuda":
        torch.cuda.empty_cache()
    return useful_flops(config) * num_rows / min(seconds)


def time_steps(config: PretrainConfig, group: ProcessGroup) -> list[float]:
    """The seconds of some steps: forward, backward, update."""
    device, vocab_size = group.device, config.discriminator.vocab_size
    objective = build_objective(config, SPECIAL_IDS, log_frequencies=torch.zeros(vocab_size)).to(device).train()
    hardware_choices.make_fast(objective, config, group)
    dtype = hardware_choices.DTYPES[config.precision]
    optimizer = RunOptimizer(objective, config.optim, muon_dtype=dtype)
    ids = torch.randint(len(SPECIAL_IDS), vocab_size, (config.batch_size, config.length))
    ids[:, 0], ids[:, -1] = SPECIAL_IDS["cls"], SPECIAL_IDS["sep"]
    rows = ids.to(device)
    is_finite = torch.ones((), dtype=torch.bool, device=device)

    def step(number: int) -> None:
        """Computed completely when it returns."""
        keys = row_keys(config.seed, number, range(config.batch_size)).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            objective(rows, keys).loss.backward()
        optimizer.step(config.optim.lr, is_finite)
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    step(0)  # the first loads libraries and compiles kernels
    seconds: list[float] = []
    while sum(seconds) < TIMED_SECONDS or len(seconds) < MIN_TIMED:
        started = time.perf_counter()
        step(len(seconds) + 1)
        seconds.append(time.perf_counter() - started)
    return seconds

"""A contender in, a process that trains when it is asked to out. All processes have the same settings of threads and memory."""

import ctypes
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from pretrain_contenders import CONTENDERS, SPECIAL, Settings
from torch import Tensor

from electrakit.train.distributed import join

PRELOADED = ["torch", "transformers", "transformers.models.electra.modeling_electra", "electrakit.train.training"]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PEAK = "peak"
"""The key of the process that measures what matrix products can reach."""
SHAPES = (
    (4096, 256, 1024),
    (4096, 1024, 256),
    (4096, 256, 768),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (608, 128, 30522),
)
"""Products that a step is made of, and two that are as fast as they get."""


@dataclass(frozen=True)
class Ready:
    """What is known of a process after its first two steps."""

    seconds: float
    """From nothing to the end of the first step: models built, and compiled if they are."""
    loss: float
    """Of the first step."""
    memory: int | None
    """Bytes at the peak of the second step, above what is held between two steps."""


# --- in the parent -----------------------------------------------------------------------------------------------------


def set_environment(threads: int, packages: Path) -> None:
    """For all processes to come. This is a benchmark of the CPU."""
    os.environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ["PYTHONSAFEPATH"] = "1"  # else a file of the folder we are in may be taken for a library
    sys.path.append(str(packages))  # goes along to the processes
    multiprocessing.set_forkserver_preload(PRELOADED)


class Worker:
    """The process of a contender, or its processes, which step together."""

    def __init__(self, key: str, settings: Settings) -> None:
        context = multiprocessing.get_context("forkserver")
        size = CONTENDERS[key].num_processes if key in CONTENDERS else 1
        settings = replace(settings, threads=max(1, settings.threads // size), batch=settings.batch // size)
        port = free_port()
        self.pipes, self.processes = [], []
        for rank in range(size):
            pipe, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, key, settings, rank, size, port), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def wait_until_ready(self) -> list[Ready]:
        return self.answers()

    def round(self, num_steps: int) -> tuple[float, float]:
        """Steps per second (of the process that measures products, operations), and the share of the time it waited for a core."""
        for pipe in self.pipes:
            pipe.send(num_steps)
        rates, waits = zip(*self.answers(), strict=True)
        return min(rates), max(waits)

    def answers(self) -> list[Any]:
        answers = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            try:
                answers.append(pipe.recv())
            except EOFError:
                process.join()
                answers.append(
                    RuntimeError(f"the process ended with exit code {process.exitcode} (-9: too little memory?)")
                )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with suppress(OSError):
                pipe.send(None)
            process.join(10)
            process.terminate()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


# --- in the process of a contender -------------------------------------------------------------------------------------


def work(pipe: Connection, key: str, settings: Settings, rank: int, size: int, port: int) -> None:
    """Get ready, then run a round whenever the parent asks; in between, wait without computing."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    keep_memory()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(rank)
    try:
        if key == PEAK:
            pipe.send(Ready(0.0, 0.0, None))
            answer(pipe, lambda _: best_product(settings))
            return
        with join() as team:
            started = time.perf_counter()
            step = CONTENDERS[key].make_step(settings, team)
            batches = [make_rows(settings, number, key) for number in range(4)]
            loss = step(batches[0])
            seconds = time.perf_counter() - started
            pipe.send(Ready(seconds, loss, peak_memory(lambda: step(batches[1]))))
            answer(pipe, lambda num_steps: timed(step, batches, num_steps, CLOCKS[settings.clock]))
    except EOFError:
        return  # the parent is gone
    except Exception as error:
        with suppress(OSError):
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"))


def answer(pipe: Connection, run: Callable[[int], float]) -> None:
    while (num_steps := pipe.recv()) is not None:
        started, waited = time.perf_counter(), seconds_without_a_core()
        rate = run(num_steps)
        share = (seconds_without_a_core() - waited) / (time.perf_counter() - started)
        pipe.send((rate, min(1.0, share / torch.get_num_threads())))
        give_memory_back()


def seconds_without_a_core() -> float:
    """How long our threads could have computed, but other work had the cores; 0 where Linux does not say."""
    files = Path("/proc/self/task").glob("*/schedstat")
    with suppress(OSError, IndexError):
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    return 0.0


def timed(step: Callable[[Tensor], float], batches: list[Tensor], num_steps: int, clock: Callable[[], float]) -> float:
    """Steps per second, by the median of some, after one that is not counted: its memory has to be fetched again."""
    step(batches[0])
    seconds = []
    for number in range(num_steps):
        started = clock()
        step(batches[number % len(batches)])
        seconds.append(clock() - started)
    return 1 / statistics.median(seconds)


def make_rows(settings: Settings, number: int, key: str) -> Tensor:
    """[CLS] words [SEP] padding: (B, T), the same for every contender."""
    chance = torch.Generator().manual_seed(number)
    vocab_size = CONTENDERS[key].config(settings).discriminator.vocab_size
    ids = torch.randint(1000, vocab_size, (settings.batch, settings.length), generator=chance)
    ids[:, 0] = SPECIAL["cls"]
    lengths = torch.full((settings.batch,), settings.length) if CONTENDERS[key].fills_padding else row_lengths(settings)
    places = torch.arange(settings.length)
    ids[places == lengths[:, None] - 1] = SPECIAL["sep"]
    return ids.masked_fill(places >= lengths[:, None], SPECIAL["pad"])


def row_lengths(settings: Settings) -> Tensor:
    """(B,): spread evenly around the mean that leaves `padding`, as far to the one side as to the other."""
    mean = settings.length * (1 - settings.padding)
    reach = min(mean / 2, settings.length - mean)
    return torch.linspace(mean - reach, mean + reach, settings.batch).round().long().clamp(3, settings.length)


def best_product(settings: Settings) -> float:
    """Operations per second of the fastest product of two matrices."""
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32
    best, clock = 0.0, CLOCKS[settings.clock]
    for rows, inner, columns in SHAPES:
        left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
        result = torch.empty(rows, columns, dtype=dtype)
        torch.mm(left, right, out=result)
        end = clock() + (0.15 if settings.size == "small" else 0.01)
        while (started := clock()) < end:
            torch.mm(left, right, out=result)
            best = max(best, 2 * rows * inner * columns / (clock() - started))
    return best


# --- memory --------------------------------------------------------------------------------------------------------------

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def c_library() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def keep_memory() -> None:
    """Freed memory stays with the process instead of being fetched from the system, page by page, in every step."""
    if library := c_library():
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_memory_back() -> None:
    """To the system: those that wait must not crowd out the one that works."""
    if library := c_library():
        library.malloc_trim(0)


def peak_memory(step: Callable[[], Any]) -> int | None:
    """How many bytes a step needs at its peak, above what was there before it; None where Linux cannot be asked."""
    give_memory_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is used now
        before = memory_status("VmHWM")
        step()
        return memory_status("VmHWM") - before
    except OSError:
        step()
        return None


def memory_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

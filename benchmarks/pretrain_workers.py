"""Run each contender in its own process, which trains on request. All processes have the same thread and memory settings."""

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

from electrakit.train.distributed import join_process_group

PRELOADED = ["torch", "transformers", "transformers.models.electra.modeling_electra", "electrakit.train.state"]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
PEAK = "peak"
"""The key of the process that measures the speed of matrix products."""
SHAPES = (
    (4096, 256, 1024),
    (4096, 1024, 256),
    (4096, 256, 768),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (608, 128, 30522),
)
"""The products in a step, and two that reach the highest speed."""


@dataclass(frozen=True)
class Ready:
    """Measurements of a process in its first two steps."""

    seconds: float
    """From the start of the process to the end of its first step, including building and compiling."""
    loss: float
    """Loss of the first step."""
    memory: int | None
    """Peak bytes of the second step, above what the process holds between steps."""


# --- in the parent -----------------------------------------------------------------------------------------------------


def set_environment(threads: int, packages: Path) -> None:
    """Set the environment of all processes. They use only the CPU."""
    os.environ |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ["PYTHONSAFEPATH"] = "1"  # else a file in the current folder may shadow a library
    sys.path.append(str(packages))  # inherited by the processes
    multiprocessing.set_forkserver_preload(PRELOADED)


class Worker:
    """The process of a contender, or its processes, which train together."""

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
        """Steps per second (operations per second for PEAK), and the share of the time that it waited for a core."""
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
    """Prepare, then run a round whenever the parent asks; sleep in between."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    keep_memory()
    torch.set_num_threads(settings.threads)
    torch.manual_seed(rank)
    try:
        if key == PEAK:
            pipe.send(Ready(0.0, 0.0, None))
            answer(pipe, lambda _: best_product(settings))
            return
        with join_process_group() as group:
            started = time.perf_counter()
            step = CONTENDERS[key].make_step(settings, group)
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
    """Seconds that our threads were ready but had no core; 0 where Linux does not report it."""
    files = Path("/proc/self/task").glob("*/schedstat")
    with suppress(OSError, IndexError):
        return sum(int(file.read_text().split()[1]) for file in files) / 1e9
    return 0.0


def timed(step: Callable[[Tensor], float], batches: list[Tensor], num_steps: int, clock: Callable[[], float]) -> float:
    """Steps per second, by the median. A first step is not timed: it has to allocate its memory again."""
    step(batches[0])
    seconds = []
    for number in range(num_steps):
        started = clock()
        step(batches[number % len(batches)])
        seconds.append(clock() - started)
    return 1 / statistics.median(seconds)


def make_rows(settings: Settings, number: int, key: str) -> Tensor:
    """Rows of [CLS] words [SEP] padding (B, T), the same for every contender."""
    chance = torch.Generator().manual_seed(number)
    vocab_size = CONTENDERS[key].config(settings).discriminator.vocab_size
    ids = torch.randint(1000, vocab_size, (settings.batch, settings.length), generator=chance)
    ids[:, 0] = SPECIAL["cls"]
    lengths = torch.full((settings.batch,), settings.length) if CONTENDERS[key].fills_padding else row_lengths(settings)
    places = torch.arange(settings.length)
    ids[places == lengths[:, None] - 1] = SPECIAL["sep"]
    return ids.masked_fill(places >= lengths[:, None], SPECIAL["pad"])


def row_lengths(settings: Settings) -> Tensor:
    """Lengths (B,), evenly spaced around the mean that gives the share `padding`."""
    mean = settings.length * (1 - settings.padding)
    reach = min(mean / 2, settings.length - mean)
    return torch.linspace(mean - reach, mean + reach, settings.batch).round().long().clamp(3, settings.length)


def best_product(settings: Settings) -> float:
    """Operations per second of the fastest matrix product."""
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
    """Keep freed memory in the process, so that steps do not fetch it from the system page by page."""
    if library := c_library():
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_memory_back() -> None:
    """Return freed memory to the system: sleeping processes must not take it from the running one."""
    if library := c_library():
        library.malloc_trim(0)


def peak_memory(step: Callable[[], Any]) -> int | None:
    """Peak bytes of a step, above those before it; None where Linux does not report them."""
    give_memory_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current usage
        before = memory_status("VmHWM")
        step()
        return memory_status("VmHWM") - before
    except OSError:
        step()
        return None


def memory_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

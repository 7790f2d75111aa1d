"""The machine in, what is fast on it out: precision, compiler, kernels, threads and allocator. `plain` switches all of it off."""

import contextlib
import ctypes
import os
import re
import traceback
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from electrakit.model import kernels
from electrakit.model.encoder import Network, use_kernels
from electrakit.model.kernels import cache_folder
from electrakit.pretrain_config import PretrainConfig
from electrakit.train.distributed import Team

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
# a compiler's minutes must come back: from about here on they do
MIN_STEPS_TO_COMPILE, MIN_SECONDS_TO_COMPILE = 5_000, 1_800
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt


def resolved(
    config: PretrainConfig, team: Team, is_custom: bool, before: PretrainConfig | None = None
) -> PretrainConfig:
    """The settings with precision and compiler decided: by the machine, or as `before` in a run that goes on."""
    if config.precision == "auto":
        is_half = has_bf16(team.device) and not config.plain
        config = replace(config, precision=before.precision if before else "bf16" if is_half else "fp32")
    if team.device.type == "cuda" and not config.plain and not is_custom:
        config = replace(config, compile=config.compile or (before.compile if before else is_long(config)))
    return config


def is_long(config: PretrainConfig) -> bool:
    if config.budget_seconds is not None:
        return config.budget_seconds >= MIN_SECONDS_TO_COMPILE
    return config.steps >= MIN_STEPS_TO_COMPILE


def has_bf16(device: torch.device) -> bool:
    """Whether products in bf16 are faster than in fp32: without instructions for them they are many times slower."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & cpu_flags())


def cpu_flags() -> set[str]:
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        return set(found[1].split()) if found else set()
    return set()


def make_fast(objective: nn.Module, config: PretrainConfig, team: Team) -> list[str]:
    """Switch on what this machine has; what people should know about it."""
    is_cpu, has_own = team.device.type == "cpu", any(isinstance(part, Network) for part in objective.modules())
    has_kernels = use_kernels(objective, is_wanted=is_cpu and has_own and not config.plain)
    if config.plain:
        return []
    news = []
    if is_cpu:
        set_threads()
        keep_memory()
    if is_cpu and has_own and not has_kernels:
        why = f"{kernels.problem()} (they need g++, or the compiler that CXX names)"
        news.append(f"No fast kernels, going on with plain torch: {why}")
    if config.compile:
        folder = os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "compiled"))
        from torch._functorch import config as compiler

        compiler.force_non_lazy_backward_lowering = (
            True  # what fails then fails in the forward pass, which can be repeated
        )
        objective.compile()
        news.append(f"Compiling: the first steps take minutes; {folder} keeps the result for the next start.")
    return news


def is_of_compiler(error: Exception) -> bool:
    """Whether it is the compiler that failed, and not what it compiled."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds, unless it is there already

    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, TorchDynamoException) or any("/torch/_inductor/" in frame.filename for frame in frames)


def stop_compiling(objective: nn.Module) -> None:
    """As if `compile` had never been called."""
    objective._compiled_call_impl = None


def set_threads() -> None:
    """One for each core, unless OMP_NUM_THREADS says otherwise; torchrun sets that to 1 by itself, so there a 1 says nothing."""
    told = os.environ.get("OMP_NUM_THREADS")
    if told is None or (told == "1" and "TORCHELASTIC_RUN_ID" in os.environ):
        torch.set_num_threads(max(1, num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def num_cores() -> int:
    """Those that this process may use."""
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # a container's share
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        number = min(number, max(1, int(quota) // int(period)))
    return number


def keep_memory() -> None:
    """Freed memory stays with the process: else every step asks for the same pages again, ten thousands of them."""
    with contextlib.suppress(OSError, AttributeError):  # glibc's
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_memory() -> None:
    """Steps of many sizes leave gaps in what is kept, more with every hour; now and then the system gets them back."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def find_peak_flops(team: Team) -> float | None:
    """What the GPU can do at most; None where we do not know it."""
    name = torch.cuda.get_device_name(team.device) if team.device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_FLOPS.items() if re.search(rf"\b{part}\b", name)), None)

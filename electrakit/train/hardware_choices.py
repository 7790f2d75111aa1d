"""Chooses what is fast on this machine: precision, compiler, kernels, threads, allocator. `plain` switches all of it off."""

import contextlib
import ctypes
import os
import platform
import re
import subprocess
import sys
import traceback
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import nn

from electrakit.common.code_cache import cache_folder, safe_folder
from electrakit.common.hardware import num_cores
from electrakit.config.pretrain import PretrainConfig
from electrakit.model import kernels
from electrakit.model.networks import Network, use_kernels
from electrakit.runs.files import Environment
from electrakit.train.distributed import ProcessGroup

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}  # of matrix products, by precision
PACKAGES = ("electrakit", "torch", "transformers", "tokenizers", "safetensors", "numpy")
AUTOCAST_PACKAGES = ("electrakit", "torch", "transformers")
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
# Compiling takes minutes, which only runs that are about this long win back.
MIN_STEPS_TO_COMPILE, MIN_SECONDS_TO_COMPILE = 5_000, 1_800
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt
ONEDNN_SHAPES = "128"  # a step has about 40; the next one has mostly the same


def choose_precision_and_compiler(
    config: PretrainConfig, group: ProcessGroup, custom: nn.Module | None, before: PretrainConfig | None = None
) -> PretrainConfig:
    """The settings with precision and compiler decided: by the machine, or as `before` in a resumed run.

    `custom` is an objective of the user's own.
    """
    if config.precision == "auto":
        is_half = has_bf16(group.device) and not config.plain and (custom is None or is_made_for_autocast(custom))
        config = replace(config, precision=before.precision if before else "bf16" if is_half else "fp32")
    if group.device.type == "cuda" and not config.plain and custom is None:
        config = replace(config, compile=config.compile or (before.compile if before else is_long(config)))
    return config


def is_long(config: PretrainConfig) -> bool:
    if config.budget_seconds is not None:
        return config.budget_seconds >= MIN_SECONDS_TO_COMPILE
    return config.steps >= MIN_STEPS_TO_COMPILE


def is_made_for_autocast(objective: nn.Module) -> bool:
    """Whether every module is torch's, transformers' or ours. Others may mix precisions, or recompute in another one than before."""
    return all(type(module).__module__.partition(".")[0] in AUTOCAST_PACKAGES for module in objective.modules())


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 is faster than fp32. A CPU without instructions for it is many times slower."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & cpu_flags())


def cpu_flags() -> set[str]:
    return set(cpu_info("flags|Features").split())  # x86, Arm


def cpu_info(field: str) -> str:
    """A field of /proc/cpuinfo; empty if there is none."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^(?:{field})\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
        return found[1].strip() if found else ""
    return ""


def make_fast(objective: nn.Module, config: PretrainConfig, group: ProcessGroup) -> list[str]:
    """Switch on what this machine has. Returns messages for the log."""
    is_cpu, has_own = group.device.type == "cpu", any(isinstance(part, Network) for part in objective.modules())
    has_kernels = use_kernels(objective, is_wanted=is_cpu and has_own and not config.plain)
    if config.plain:
        return []
    notices = []
    if is_cpu:
        set_threads()
        keep_memory()
    if is_cpu and has_own and not has_kernels:
        why = f"{kernels.problem()} (they need g++, or the compiler that CXX names)"
        notices.append(f"No fast kernels, continuing with plain torch: {why}")
    if config.compile:
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(safe_folder(cache_folder() / "compiled"))
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        from torch._functorch import config as compiler

        # A failure of the compiler is then one of the forward pass, which can be repeated.
        compiler.force_non_lazy_backward_lowering = True
        objective.compile()
        notices.append(f"Compiling: the first steps take minutes; {folder} keeps the result for the next start.")
    return notices


def is_compiler_error(error: Exception) -> bool:
    """Whether the compiler failed, not the code that it compiled."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, TorchDynamoException) or any("/torch/_inductor/" in frame.filename for frame in frames)


def stop_compiling(objective: nn.Module) -> None:
    """Undo `objective.compile()`."""
    objective._compiled_call_impl = None


def set_threads() -> None:
    """One for each core, unless the user has set OMP_NUM_THREADS. Under torchrun a 1 is ignored: torchrun sets it by itself."""
    given = os.environ.get("OMP_NUM_THREADS")
    if given is None or (given == "1" and "TORCHELASTIC_RUN_ID" in os.environ):
        torch.set_num_threads(max(1, num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def keep_memory() -> None:
    """Keep freed memory in the process: otherwise every step requests tens of thousands of pages again.

    oneDNN, which computes bf16 products, keeps compiled code for its last 1,024 shapes, half a megabyte each. Packed tokens are padded so
    that there are few; those of rows that are not packed, or of validation, are rarely seen again.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", ONEDNN_SHAPES)  # read at the first product
    with contextlib.suppress(OSError, AttributeError):  # there is glibc only on Linux
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_back_memory() -> None:
    """Return unused memory to the system: steps of different sizes leave gaps in what is kept, more with every hour."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def describe_environment(group: ProcessGroup) -> Environment:
    """Where and how this start was made."""
    cpu_name = cpu_info("model name") or platform.processor() or "cpu"
    return Environment(
        command=sys.argv,
        folder=str(Path.cwd()),
        commit=commit(),
        versions={"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}},
        machine=platform.platform(),
        device=torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else cpu_name,
        processes=group.world_size,
        threads=torch.get_num_threads(),
    )


def commit() -> str | None:
    """Of the checkout that the code comes from, if it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return None


def version_of(package: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def find_peak_flops(group: ProcessGroup) -> float | None:
    """Of the GPU; None if it is not known."""
    name = torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_FLOPS.items() if re.search(rf"\b{part}\b", name)), None)

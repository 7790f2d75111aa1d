"""Counts the processor cores and the bytes of memory that this process may use, inside a container too."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def num_cores() -> int:
    """The cores of the CPU affinity, or of the container's quota if that is less; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _cgroup_folders("cpu"):
        with contextlib.suppress(OSError, ValueError):  # version 2; no limit is "max", which is no number
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            cores = min(cores, int(quota) // int(period))
        with contextlib.suppress(OSError, ValueError):  # version 1; no limit is -1
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
            )
            if int(quota) > 0:
                cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def available_memory() -> int:
    """Bytes of the machine's memory that are free, or the container's limit if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2]
    with contextlib.suppress(OSError, KeyError):  # Linux
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits = [{line.split(":")[0]: int(line.split()[1]) for line in lines}["MemAvailable"] * 1024]
    for folder in _cgroup_folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # versions 2 and 1
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text(encoding="ascii")))
    return min(limits)


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """Where limits may stand: the process's own cgroup and those above it, in both versions.

    In a container the root is often the container's own cgroup, while /proc names the host's path, which is not there.
    """
    with contextlib.suppress(OSError):
        for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            # Version 2 names no controllers, and has one folder for all.
            root = CGROUPS / controller if controllers else CGROUPS
            place = root / path.lstrip("/")
            yield from (folder for folder in (place, *place.parents) if folder.is_relative_to(root))

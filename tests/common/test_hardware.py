"""The core count and the free memory honour affinity and the limits of both versions of cgroups."""

import os

import pytest

from electrakit.common import hardware
from electrakit.config.corpus import CorpusConfig

UNLIMITED_V1 = 9223372036854771712


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Writes what /proc and /sys say about the container: `cgroups("0::/", {"cpu.max": "100000 100000"})`."""
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def write(membership, files):
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    return write


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "300000 100000"}, 3),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "1600000 100000"}, 8),
        ("0::/job/step", {"job/cpu.max": "200000 100000", "job/step/cpu.max": "max 100000"}, 2),
        ("4:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("1:cpu:/docker/1f\n0::/", {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("2:cpuset:/", {"cpuset/cpu.cfs_quota_us": "100000", "cpuset/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_containers_quota_limits_the_cores(cgroups, membership, files, cores):
    cgroups(membership, files)
    assert hardware.num_cores() == cores
    assert CorpusConfig(inputs=("x",)).num_workers == cores, "commands start as many workers as there are cores"


def test_a_machine_without_cgroups_has_the_cores_of_its_affinity(cgroups):
    assert hardware.num_cores() == 8
    assert hardware.available_memory() > 0


@pytest.mark.parametrize(
    ("membership", "name"), [("0::/", "memory.max"), ("4:memory:/docker/1f", "memory/memory.limit_in_bytes")]
)
def test_a_containers_limit_bounds_the_memory(cgroups, membership, name):
    cgroups(membership, {name: "1000000"})
    assert hardware.available_memory() == 1_000_000
    cgroups(membership, {name: "max" if name == "memory.max" else str(UNLIMITED_V1)})
    assert hardware.available_memory() > 1_000_000

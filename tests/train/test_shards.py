"""Muon and LAMB on weights that FSDP has divided, and Electric on several processes: two take the steps of one."""

import os
import subprocess
import sys

import pytest

from electrakit import pretrain
from electrakit.runs.files import PretrainRun
from tests.helpers.processes import HANG
from tests.helpers.runs import assert_same
from tests.helpers.torchrun import QUIET, finished, losses, torchrun

WORKER = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from electrakit import presets
from electrakit.config.network import NetworkConfig
from electrakit.config.optim import OptimConfig
from electrakit.model.networks import Generator
from electrakit.train.distributed import copy_into, full_tensor
from electrakit.train.optim import RunOptimizer

torch.set_num_threads(1)
dist.init_process_group("gloo")
# Sizes that two ranks cannot divide equally: 9 and 27 rows.
size = NetworkConfig(vocab_size=13, num_layers=2, hidden_size=9, ffn_size=15, num_heads=3, embedding_size=9, max_length=8)
for name in ("muon", "lamb"):
    networks = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        network = Generator(size)
        if is_sharded:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in network.body.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(network, mesh=mesh)
        optimizer = RunOptimizer(network, OptimConfig(name=name, lr=0.02, weight_decay=0.1))
        chance = torch.Generator().manual_seed(1)
        for step in range(4):
            for weight in network.parameters():
                weight.grad = torch.zeros_like(weight)
                copy_into(weight.grad, torch.randn(weight.shape, generator=chance))
            optimizer.step(0.02, torch.tensor(True))
        state = {key: full_tensor(value) for key, value in optimizer.state().items()}
        networks.append({**{key: full_tensor(value).detach() for key, value in network.named_parameters()}, **state})
    plain, sharded = networks
    assert plain.keys() == sharded.keys()
    for key in plain:
        assert (plain[key] - sharded[key]).abs().max() <= 1e-6, (name, key, (plain[key] - sharded[key]).abs().max())
dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.parametrize("num_processes", [2, 3])
def test_sharded_steps_are_those_of_one_process(tmp_path, num_processes):
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [*command, tmp_path / "worker.py"], capture_output=True, text=True, env=environment, timeout=HANG
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("Several processes", "1 -> 2 -> 1 processes with FSDP2, LAMB and Muon", "the same weights to 1e-6")
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "fsdp"),
    [("muon", "electric", True), ("lamb", "electra", True), ("official_adam", "electric", False)],
)
def test_a_run_goes_from_one_process_to_two_and_back(tiny, name, kind, fsdp):
    settings = {**QUIET, "steps": 6, "log_every": 1, "micro_batch": None, "valid_every": 100, "valid_rows": 2}
    settings |= {"optim": {"name": name, "lr": 1e-3, "warmup_steps": 2}, "objective": {"kind": kind}}
    alone = pretrain(tiny("alone", **settings))
    pretrain(tiny("mixed", **settings), stop_after=2)
    finished(torchrun(tiny("mixed", **settings, fsdp=fsdp), "4"))
    assert pretrain(tiny("mixed", **settings)).is_complete
    assert losses(tiny("mixed").run) == pytest.approx(losses(alone.path), rel=1e-5)


@pytest.mark.long
def test_a_sharded_run_of_muon_resumes_bit_for_bit(tiny):
    settings = {**QUIET, "steps": 4, "log_every": 1, "micro_batch": 4, "valid_every": 100, "valid_rows": 2}
    settings |= {"optim": {"name": "muon", "lr": 1e-3, "warmup_steps": 2}, "fsdp": True}
    finished(torchrun(tiny("whole", **settings)))
    finished(torchrun(tiny("halves", **settings), "2"))
    finished(torchrun(tiny("halves", **settings)))
    assert_same(*(PretrainRun(tiny(name).run, 4, True) for name in ("whole", "halves")))


@pytest.mark.long
def test_electric_resumes_bit_for_bit(tiny):
    settings = {"steps": 4, "log_every": 1, "save_every": 2, "objective": {"kind": "electric"}}
    whole = pretrain(tiny("whole", **settings))
    pretrain(tiny("halves", **settings), stop_after=2)
    assert_same(whole, pretrain(tiny("halves", **settings)))

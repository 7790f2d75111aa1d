"""Signals of every kind to each of two processes: all stop at the same step, and the run ends with the same bits."""

import json
import os
import subprocess
import sys

import pytest

from electrakit.runs.files import PretrainRun
from electrakit.train.signals import SIGNALS
from tests.helpers.processes import HANG
from tests.helpers.runs import assert_same

# Each start gets one signal, in one of its processes, between the micro-batches of its first step.
WORKER = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig
from electrakit.train.signals import SIGNALS

torch.set_num_threads(1)
config, whole = (PretrainConfig.from_json(each) for each in json.load(open(sys.argv[1])))
dist.init_process_group("gloo")  # once, for all starts
waiting = []

def send(module, inputs):
    if waiting and isinstance(module, DistributedDataParallel):
        os.kill(os.getpid(), waiting.pop())

register_module_forward_pre_hook(send)
steps = []
for place, number in enumerate(SIGNALS):
    waiting[:] = [number] * (1 + place % 3) if dist.get_rank() == place % 2 else []  # up to three of them
    steps.append(pretrain(config).step)
    waiting.clear()
assert steps == list(range(1, 1 + len(SIGNALS))), steps
assert pretrain(config).is_complete and pretrain(whole).is_complete
dist.destroy_process_group()
"""


@pytest.mark.promise(
    "Several processes",
    "a signal of every kind to one of two processes",
    "both stop at that step, the same bits at the end",
    cases=len(SIGNALS),
)
@pytest.mark.long
def test_a_signal_of_any_kind_to_any_process_stops_all_of_them(tiny, tmp_path):
    settings = {"steps": len(SIGNALS) + 1, "save_every": 100, "valid_every": 100, "valid_rows": 2, "micro_batch": 2}
    configs = [tiny(name, **settings) for name in ("stopped", "whole")]
    (tmp_path / "settings.json").write_text(json.dumps([config.to_json() for config in configs]))
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "worker.py"), str(tmp_path / "settings.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    stopped, whole = (PretrainRun(config.run, settings["steps"], True) for config in configs)
    assert_same(stopped, whole)

"""Runs on several processes: torchrun, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from electrakit.config.pretrain import PretrainConfig
from electrakit.runs.files import read_metrics
from tests.helpers.processes import HANG

WORKER = """
import json, sys
from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig
import torch
torch.set_num_threads(1)
stop_after = int(sys.argv[2]) if len(sys.argv) > 2 else None
pretrain(PretrainConfig.from_json(json.load(open(sys.argv[1]))), stop_after=stop_after)
"""
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
QUIET = {"discriminator": NO_DROPOUT, "generator": NO_DROPOUT}


def torchrun(
    config: PretrainConfig, *arguments: str, num_processes: int = 2, options: tuple[str, ...] = (), code: str = WORKER
) -> subprocess.Popen[str]:
    assert config.run is not None
    folder = config.run.parent
    (folder / "worker.py").write_text(code)
    (folder / "settings.json").write_text(json.dumps(config.to_json()))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={num_processes}",
        *options,
    ]
    command += [str(folder / "worker.py"), str(folder / "settings.json"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def finished(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == 0, said
    return said


def losses(path: Path, split: str = "train", name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(path) if line["split"] == split]

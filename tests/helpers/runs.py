"""Runs begun, and compared bit for bit."""

import json

import torch
from safetensors.torch import load_file

from electrakit.config.pretrain import PretrainConfig
from electrakit.runs.files import PretrainRun
from electrakit.train.distributed import ProcessGroup
from electrakit.train.state import TrainState

TIMES = {"seconds", "tokens_per_second", "mfu"}


def begun(config: PretrainConfig) -> torch.nn.Module:
    """The objective of a run at its first step."""
    assert config.run is not None
    config.run.mkdir(exist_ok=True)
    training = TrainState(config, None, ProcessGroup(torch.device("cpu")))
    training.close()
    return training.objective


def metrics_of(run: PretrainRun) -> list[dict]:
    """All lines of the log without what the clock says."""
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def weights(run: PretrainRun) -> dict[str, torch.Tensor]:
    model, optimizer = (load_file(run.checkpoint / f"{name}.safetensors") for name in ("model", "optimizer"))
    return {**model, **{f"optimizer {name}": value for name, value in optimizer.items()}}


def assert_same(one: PretrainRun, two: PretrainRun) -> None:
    """Weights, optimizer and log, bit for bit."""
    assert one.step == two.step
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert metrics_of(one) == metrics_of(two)

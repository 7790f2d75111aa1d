"""What is fast is chosen by the machine, and `plain` switches it off."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import electrakit as ek
from electrakit.common.errors import UserError
from electrakit.model import kernels
from electrakit.objective.build import build_objective
from electrakit.train import hardware_choices
from electrakit.train.distributed import ProcessGroup
from electrakit.train.optim import Muon
from electrakit.train.state import TrainState

SPECIAL_IDS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
CPU, GPU = ProcessGroup(torch.device("cpu")), ProcessGroup(torch.device("cuda", 0))


def resolved(group=CPU, custom=None, **changes):
    return hardware_choices.choose_precision_and_compiler(ek.presets.electra_small(**changes), group, custom)


def test_precision_is_that_of_the_machine(monkeypatch):
    monkeypatch.setattr(hardware_choices, "cpu_flags", lambda: {"avx512f"})
    assert resolved().precision == "fp32"
    monkeypatch.setattr(hardware_choices, "cpu_flags", lambda: {"avx512f", "avx512_bf16"})
    assert resolved().precision == "bf16"
    assert resolved(precision="fp32").precision == "fp32"
    assert resolved(plain=True).precision == "fp32"


def test_modules_of_other_packages_train_in_fp32_unless_asked(monkeypatch):
    """Such as those that recompute in the backward pass without autocast."""
    monkeypatch.setattr(hardware_choices, "cpu_flags", lambda: {"avx512_bf16"})
    own = type("Own", (nn.Module,), {"__module__": "reversible"})
    assert resolved(custom=nn.Sequential(nn.Linear(1, 1))).precision == "bf16"
    assert resolved(custom=nn.Sequential(nn.Linear(1, 1), own())).precision == "fp32"
    assert resolved(custom=own(), precision="bf16").precision == "bf16"


def test_a_gpu_compiles_runs_that_are_long_enough(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolved(GPU).compile and resolved(GPU).precision == "bf16"
    assert not resolved(GPU, steps=100).compile
    assert not resolved(GPU, budget="5m").compile and resolved(GPU, budget="2h").compile
    assert not resolved(GPU, plain=True).compile
    assert not resolved(GPU, custom=nn.Linear(1, 1)).compile, "modules of your own may not be made for it"
    assert not resolved(CPU).compile and resolved(CPU, compile=True).compile


@pytest.mark.skipif(kernels.problem() is not None, reason="no compiler here: the kernels cannot be built")
def test_our_networks_get_kernels_unless_plain():
    for is_plain in (True, False):
        config = ek.presets.tiny(plain=is_plain)
        objective = build_objective(config, SPECIAL_IDS)
        assert hardware_choices.make_fast(objective, config, CPU) == []
        ids = torch.ones(2, 8, dtype=torch.int64)
        assert objective.generator.can_use_kernels(ids) is objective.discriminator.can_use_kernels(ids) is not is_plain
        hardware_choices.make_fast(objective, ek.presets.tiny(plain=True), CPU)
        assert not objective.generator.can_use_kernels(ids), "plain switches off what was on"


def test_the_flags_of_this_processor_are_read():
    flags = hardware_choices.cpu_flags()
    assert not Path("/proc/cpuinfo").exists() or flags & {"fpu", "fp"}


def test_torchrun_leaves_its_one_thread_behind(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(hardware_choices, "num_cores", lambda: 3)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        hardware_choices.set_threads()
        assert torch.get_num_threads() == before, "a person said so"
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        hardware_choices.set_threads()
        assert torch.get_num_threads() == 3
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        hardware_choices.set_threads()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.long
def test_freed_memory_stays_with_the_process():
    code = """
import resource, torch
from electrakit.train.hardware_choices import keep_memory
{call}
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(20): torch.ones(2**24)
work(); before = faults(); work(); print(faults() - before)
"""
    found = [
        int(subprocess.run([sys.executable, "-c", code.format(call=call)], capture_output=True, check=True).stdout)
        for call in ("", "keep_memory()")
    ]
    assert found[1] < found[0] / 10


def test_the_gaps_in_what_is_kept_are_given_back():
    code = """
import torch
from torch import nn
from electrakit.train.hardware_choices import give_back_memory, keep_memory
keep_memory()
blocks = [torch.ones(2**20) for _ in range(100)]
del blocks[:-1]  # the last one stands above the gap
def kept():
    return int(open("/proc/self/statm").read().split()[1]) * 4
before = kept(); give_back_memory(); print(before - kept())
"""
    given = int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert given > 300_000  # of 400,000 kB


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_muon_multiplies_in_the_precision_of_the_run(shards, tmp_path, precision, dtype):
    config = ek.presets.modern_tiny(data=shards, run=tmp_path / "run", precision=precision)
    (tmp_path / "run").mkdir()
    with contextlib.closing(TrainState(config, None, CPU)) as state:
        assert [part.dtype for part in state.optimizer.parts if isinstance(part, Muon)] == [dtype]


@pytest.mark.long
@pytest.mark.skipif(not hardware_choices.has_bf16(CPU.device), reason="fp32 products are not oneDNN's")
def test_products_of_ever_new_shapes_take_little_memory():
    """As those of Electric are, whose number of scored tokens changes at every step."""
    code = """
import torch
from electrakit.train.hardware_choices import keep_memory
{call}
weight = torch.ones(128, 128, dtype=torch.bfloat16)
def kept():
    return int(open("/proc/self/statm").read().split()[1]) * 4
torch.ones(3000, 128, dtype=torch.bfloat16) @ weight
before = kept()
for rows in range(1000, 2500): torch.ones(rows, 128, dtype=torch.bfloat16) @ weight
print(kept() - before)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEDNN")}
    found = [
        int(
            subprocess.run(
                [sys.executable, "-c", code.format(call=call)], capture_output=True, check=True, env=environment
            ).stdout
        )
        for call in ("", "keep_memory()")
    ]
    assert found[0] - found[1] > 200_000  # of about 1,000,000 kB


def test_a_run_that_was_started_keeps_its_precision(tiny, monkeypatch):
    run = ek.pretrain(tiny(steps=1, precision="fp32"))
    monkeypatch.setattr(hardware_choices, "cpu_flags", lambda: {"avx512_bf16"})
    assert ek.pretrain(tiny(steps=2, precision="auto")).is_complete
    assert '"precision": "fp32"' in (run.path / "config.json").read_text()
    with pytest.raises(UserError, match="precision fp32 -> bf16"):
        ek.pretrain(tiny(steps=3, precision="bf16"))


@pytest.mark.long
def test_a_compiler_that_fails_is_gone_on_without(tiny, tmp_path):
    """And says so. The run is that of plain torch."""
    config = tiny("plain", steps=2, log_every=1, plain=True)
    command = [sys.executable, "-m", "electrakit", "pretrain", "tiny", "--data", str(config.data), "--compile"]
    command += ["--steps", "2", "--log-every", "1", "--batch-size", str(config.batch_size)]
    command += ["--micro-batch", str(config.micro_batch or config.batch_size), "--run", str(tmp_path / "compiled")]
    environment = {**os.environ, "PATH": "/nowhere", "CXX": "nothing", "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Compiling: the first steps take minutes" in done.stderr
    assert "Continuing without compiling: " in done.stderr
    assert "No fast kernels, continuing with plain torch: " in done.stderr and "nothing" in done.stderr
    assert done.stdout == "" or "Traceback" not in done.stdout


@pytest.mark.long
def test_a_compiler_that_fails_in_the_backward_pass_is_gone_on_without(tiny, monkeypatch):
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import compile_fx

    called = []

    def forward(graph, *arguments, **settings):  # as it was traced: g++ would take a minute
        called.append("forward")
        return make_boxed_func(graph.forward)

    def fail(*arguments, **settings):
        called.append("backward")
        raise RuntimeError("the backward pass cannot be compiled")

    monkeypatch.setattr(compile_fx, "compile_fx_forward", forward)
    monkeypatch.setattr(compile_fx, "compile_fx_backward", fail)
    run = ek.pretrain(tiny("compiled", steps=2, log_every=1, compile=True))
    assert set(called) == {"forward", "backward"} and run.is_complete


@pytest.mark.long
def test_plain_builds_nothing(tmp_path):
    code = """
import torch, electrakit as ek
from electrakit.objective.build import build_objective
from electrakit.train import hardware_choices
from electrakit.train.distributed import ProcessGroup
config = ek.presets.tiny(plain=True)
objective = build_objective(config, {"pad": 0, "cls": 1, "sep": 2, "mask": 3})
hardware_choices.make_fast(objective, config, ProcessGroup(torch.device("cpu")))
objective(torch.randint(5, 100, (2, 16)))
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []

"""Several processes, started by torchrun: the same rows, the same losses, the same safety."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electrakit import presets, pretrain
from electrakit.model.auto import STEPS_SHARE
from electrakit.runs.files import PretrainRun, read_metrics
from electrakit.runs.settings import read_config
from tests.helpers.processes import HANG, wait_until
from tests.helpers.steady_speed import choose
from tests.helpers.torchrun import QUIET, WORKER, finished, losses, torchrun


def wait_for(process: subprocess.Popen[str], is_there: Callable[[], bool]) -> None:
    wait_until(is_there, process)


@pytest.mark.promise("Several processes", "1 -> 2 -> 1 processes", "the same losses")
@pytest.mark.long
def test_two_processes_train_as_one_and_a_run_is_resumed_with_another_number(tiny):
    """The batch of 9 rows is 5 and 4; with micro-batches of 2 one process has an odd micro-batch more than it has rows."""
    settings = {**QUIET, "steps": 8, "log_every": 1, "batch_size": 9, "micro_batch": 2, "valid_every": 4}
    alone = pretrain(tiny("alone", **settings))
    finished(torchrun(tiny("two", **settings)))
    assert losses(tiny("two").run) == pytest.approx(losses(alone.path), rel=1e-5)
    # samples may tip over
    assert losses(tiny("two").run, "valid") == pytest.approx(losses(alone.path, "valid"), rel=1e-3)
    for name in ("auc_frequency", "auc_neighbours", "auc_swapped"):
        one, two = (losses(tiny(run).run, "valid", name) for run in ("alone", "two"))
        assert len(one) == 3 and two == pytest.approx(one, abs=1e-3)

    finished(torchrun(tiny("mixed", **settings), "3"))
    pretrain(tiny("mixed", **settings), stop_after=5)
    finished(torchrun(tiny("mixed", **settings)))
    assert losses(tiny("mixed").run) == pytest.approx(losses(alone.path), rel=1e-5)


@pytest.mark.long
def test_fsdp_trains_as_one_and_its_checkpoint_is_read_by_one(tiny):
    settings = {**QUIET, "steps": 6, "log_every": 1, "micro_batch": None, "save_every": 3, "keep_at": ("50%",)}
    alone = pretrain(tiny("alone", **settings))
    finished(torchrun(tiny("sharded", **settings, fsdp=True), "4"))
    path = tiny("sharded").run
    state = load_file(path / "checkpoints" / "step_0000003" / "model.safetensors")
    expected = load_file(alone.path / "checkpoints" / "step_0000003" / "model.safetensors")
    assert state.keys() == expected.keys()  # whole, and what is shared once
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5)
    run = pretrain(tiny("sharded", **settings))
    assert run.is_complete
    sharded, whole = (losses(tiny(name).run, "valid", "auc_swapped") for name in ("sharded", "alone"))
    assert len(whole) == 2 and sharded == pytest.approx(whole, abs=1e-3)
    assert losses(path) == pytest.approx(losses(alone.path), rel=1e-5)
    from transformers import ElectraForMaskedLM

    generator = ElectraForMaskedLM.from_pretrained(run.checkpoint / "generator")
    assert generator.get_output_embeddings().weight is generator.get_input_embeddings().weight


@pytest.mark.long
def test_fsdp_with_recomputation_and_micro_batches_trains_as_one(tiny):
    settings = {**QUIET, "steps": 3, "log_every": 1, "micro_batch": 2, "valid_every": 100, "valid_rows": 2}
    alone = pretrain(tiny("alone", **settings))
    finished(torchrun(tiny("sharded", **settings, fsdp=True, recompute=True)))
    assert losses(tiny("sharded").run) == pytest.approx(losses(alone.path), rel=1e-5)


@pytest.mark.promise("Several processes", "SIGKILL of one worker under torchrun", "started again, the right result")
@pytest.mark.long
def test_a_killed_worker_is_started_again_and_the_result_is_right(tiny, tmp_path):
    settings = {"steps": 15, "log_every": 5, "save_every": 5, "valid_every": 1000, "batch_size": 8, "micro_batch": 4}
    saved, is_killed = tmp_path / "saved", tmp_path / "is_killed"
    hold = f"touch '{saved}'; while [ ! -e '{is_killed}' ]; do sleep 0.05; done"
    process = torchrun(tiny("killed", **settings, on_checkpoint=hold), options=("--max-restarts=2",))
    wait_for(process, saved.exists)
    workers = [
        int(line)
        for line in subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    ]
    assert workers
    os.kill(workers[-1], signal.SIGKILL)
    is_killed.touch()
    said = finished(process)
    assert "Resuming from" in said
    finished(torchrun(tiny("whole", **settings)))
    killed, whole = (
        load_file(PretrainRun(tiny(name).run, 15, True).checkpoint / "model.safetensors")
        for name in ("killed", "whole")
    )
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())
    assert [line["step"] for line in read_metrics(tiny("killed").run) if line["split"] == "train"] == [5, 10, 15]


def documented_options() -> tuple[str, ...]:
    """What docs/clusters.md tells to give to torchrun, besides the number of processes."""
    text = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    match = re.search(r"^torchrun --nproc-per-node 8 (.*?) -m -- electrakit", text.replace("\\\n", ""), re.M)
    assert match is not None
    return tuple(match[1].split())


@pytest.mark.promise("Several processes", "signal to torchrun", "saved, no process left")
@pytest.mark.long
def test_a_signal_to_torchrun_as_documented_saves_in_all_processes_and_leaves_none(tiny, trials):
    """To torchrun alone, as from a queue; SIGHUP and Ctrl-C to all processes at once, as from a terminal."""
    settings = {"steps": 100_000, "save_every": 100_000, "valid_every": 100_000}
    ways = [
        (os.kill, signal.SIGTERM),
        (os.killpg, signal.SIGHUP),
        (os.kill, signal.SIGUSR1),
        (os.killpg, signal.SIGINT),
        *((os.kill, number) for number in (signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM)),
    ]
    for seed in trials:
        send, number = ways[seed % len(ways)]
        config = tiny(f"run{seed}", **settings)
        process = torchrun(config, options=documented_options())
        wait_for(process, lambda config=config: bool(losses(config.run)))
        send(process.pid, number)
        try:
            process.communicate(timeout=HANG)  # the end of its processes' messages, too
            assert process.returncode != -number
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert json.loads((config.run / "status.json").read_text())["is_complete"] is False
        saved = sorted((config.run / "checkpoints").glob("step_*"))
        assert len(saved) == 1
        step = int(saved[0].name.removeprefix("step_"))
        assert pretrain(config, stop_after=step + 1).step == step + 1


@pytest.mark.long
def test_two_processes_may_compile_and_train_a_pair_of_your_own(tiny, tmp_path):
    """A plain pair, in which not every parameter takes part in the loss."""
    code = WORKER.replace(
        "pretrain(PretrainConfig.from_json(json.load(open(sys.argv[1]))), stop_after=stop_after)",
        """
import electrakit as ek
from electrakit.config.pretrain import with_special_ids
config = PretrainConfig.from_json(json.load(open(sys.argv[1])))
torch.manual_seed(0)
generator, discriminator = ek.build(with_special_ids(config, {"pad": 0, "sep": 3}))
discriminator.unused = torch.nn.Linear(2, 2)
pair = ek.Electra(generator, discriminator, mask_token_id=4, sep_token_id=3, mask_ignore_token_ids=[2, 3])
pretrain(config, pair)
""",
    )
    settings = {"log_every": 1, "batch_size": 4, "micro_batch": None, "valid_rows": 4, "compile": True}
    one_layer = {"discriminator": {"num_layers": 1}, "generator": {"num_layers": 1}}  # half as much to compile
    config = tiny("own", steps=3, **settings, **one_layer)
    finished(torchrun(config, code=code))
    assert len(losses(config.run)) == 3


@pytest.mark.promise("Several processes", "full disk on rank 0", "all ranks end with one line")
@pytest.mark.long
def test_a_disk_that_is_full_for_the_first_is_told_by_all(tiny):
    """No rank waits for one that has failed."""
    config = tiny(steps=4, save_every=2)
    code = WORKER.replace(
        "stop_after = ",
        "import os, resource\nif os.environ['RANK'] == '0': resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\nstop_after = ",
    )
    process = torchrun(config, code=code)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode != 0
    assert said.count("UserError: cannot write the checkpoint") == 2
    assert "Connection closed" not in said


@pytest.mark.promise("Several processes", "damage that rank 0 finds at the start", "all ranks end with one line")
@pytest.mark.long
@pytest.mark.parametrize("what", ["checkpoints", "shards"])
def test_damage_that_the_first_finds_at_the_start_is_told_by_all(tiny, tmp_path, what):
    shutil.copytree(tiny().data, tmp_path / "shards")
    config = replace(tiny(), data=tmp_path / "shards")
    path = tmp_path / "shards" / "train-00000.bin"
    if what == "checkpoints":
        path = pretrain(config, stop_after=2).checkpoint / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    _, said = torchrun(config).communicate(timeout=HANG)
    line = {"checkpoints": "all checkpoints in", "shards": str(path)}[what]
    assert len(re.findall(rf"UserError: {re.escape(line)}", said)) == 2, said
    assert "Connection closed" not in said


# While rank 0 works alone, a collective without WAIT_TIMEOUT fails after a second. Otherwise ranks have their usual time.
IMPATIENT = """
from datetime import timedelta
from torch.distributed import distributed_c10d
from electrakit.train.distributed import COMPUTE_TIMEOUT, ProcessGroup

def impatient(group, work, run_on_main=ProcessGroup.run_on_main):
    distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    value = run_on_main(group, work)
    distributed_c10d._set_pg_timeout(COMPUTE_TIMEOUT)
    return value

distributed_c10d.default_pg_timeout = timedelta(seconds=1)
ProcessGroup.run_on_main = impatient
"""


@pytest.mark.long
def test_others_wait_for_on_checkpoint_longer_than_for_each_other(tiny):
    config = tiny(steps=4, save_every=2, valid_every=100, on_checkpoint="case {path} in *2) sleep 3;; esac")
    code = WORKER.replace("stop_after = ", f"{IMPATIENT}\nstop_after = ", 1)
    finished(torchrun(config, code=code))
    assert json.loads((config.run / "status.json").read_text()) == {"step": 4, "is_complete": True}


AUTO_WORKER = """
import json, sys
import torch
from electrakit import choose_recipe, pretrain
from electrakit.train import auto
torch.set_num_threads(1)
settings = json.load(open(sys.argv[1]))
changes = {name: settings[name] for name in ("data", "run", "batch_size")}
auto.measure_speed = lambda config, group: 1e9 * (1 + torch.distributed.get_rank())
small = {"discriminator": {"num_layers": 1}, "generator": {"num_layers": 1}, "valid_rows": 8}
config = choose_recipe(budget="2d", **small, **changes).config
pretrain(config, stop_after=2)
"""


@pytest.mark.long
def test_two_processes_decide_for_their_speeds_together(shards, tmp_path):
    given = presets.modern_tiny(data=shards, run=tmp_path / "run", batch_size=4)
    finished(torchrun(given, code=AUTO_WORKER))
    manifest = json.loads((shards / "manifest.json").read_text())
    num_tokens = manifest["splits"]["train"]["rows"] * 32
    expected = choose(2 * 86_400, 3e9 * STEPS_SHARE, num_tokens, manifest["vocab_size"], 32, batch_size=4)
    assert read_config(tmp_path / "run").settings.steps == expected.config.steps


@pytest.mark.long
def test_the_first_process_decides_when_a_checkpoint_is_due_and_any_may_ask_to_stop(tmp_path):
    code = """
import sys
import torch.distributed as dist
from electrakit.train.distributed import ProcessGroup
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
group = ProcessGroup("cpu", rank, 2, dist.group.WORLD)
print([group.agree(rank == 1, 0.5 + rank, rank == one) for one in (0, 1)])
dist.destroy_process_group()
"""
    command = [sys.executable, "-c", code]
    running = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for process in running:
        assert process.communicate(timeout=HANG)[0].strip() == "[(True, 0.5, True), (True, 0.5, False)]"

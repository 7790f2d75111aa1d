"""A process that starts a run again and again, and kills it: `python kills.py CONFIG.json NUMBER|writes|full`. Used by test_kills.py.

It forks children from a process that has loaded the libraries but trained nothing: a start takes no time.
"""

import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch
import torch._dynamo  # every optimizer loads it; once, here
from transformers import ElectraConfig, ElectraModel

from electrakit import pretrain
from electrakit.config.pretrain import PretrainConfig


def child(config: PretrainConfig, before: object = None, on_checkpoint: Callable[[Path], object] | None = None) -> int:
    """Run it in a child; its process number."""
    pid = os.fork()
    if not pid:
        try:
            torch.set_num_threads(1)
            if callable(before):
                before()
            pretrain(config, on_checkpoint=on_checkpoint)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def load_for_saving() -> None:
    """transformers makes a table when it saves its first model, which takes longer than a save: once, here."""
    sizes = {"vocab_size": 8, "hidden_size": 4, "embedding_size": 4, "num_attention_heads": 1, "intermediate_size": 4}
    with tempfile.TemporaryDirectory() as folder:
        ElectraModel(ElectraConfig(**sizes, num_hidden_layers=1)).save_pretrained(folder)


def kill_at_random_moments(config: PretrainConfig, num_kills: int) -> None:
    """So often: some time after its start, or after it has written a new checkpoint. Then it may end.

    With its second new checkpoint a run waits to be killed: the number of kills does not depend on the speed of the machine. Prints the
    memory that each process took, in kB.
    """
    chance = random.Random(0)
    is_second = iter([False, True])  # each child has its own copy
    for number in range(num_kills):
        before, pid = checkpoints_of(config), child(config, on_checkpoint=lambda _: next(is_second) and signal.pause())
        while number % 3 and checkpoints_of(config) == before and not has_ended(pid):
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, status
        print(usage.ru_maxrss)
    _, status, usage = os.wait4(child(config), 0)
    assert status == 0, status
    print(usage.ru_maxrss)


def checkpoints_of(config: PretrainConfig) -> list[Path]:
    return sorted(Path(config.run or "").glob("checkpoints/step_*"))


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_at_every_write(config: PretrainConfig) -> None:
    """Before the first file, sync or rename, before the second one, ...: until a run meets no more of them.

    When a start is over, which claims its names only once, and from each new checkpoint on, all of it again. Prints what each kill
    came before. A folder that is there already, and a sync right after another one, change nothing that a kill would leave: there is
    no kill before them.
    """
    number, there = 0, None
    while True:
        before, there = there, [*checkpoints_of(config), *Path(config.run or "").glob("status.json")]
        number = number + 1 if before == there else 1

        def arm(number: int = number) -> None:
            calls, is_synced = 0, False

            def count(what: str) -> None:
                nonlocal calls
                calls += 1
                if calls == number:
                    print(what, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

            def counted(place, name, which=0):
                function = getattr(place, name)

                def wrapper(*arguments, **settings):
                    nonlocal is_synced
                    if not (name == "fsync" and is_synced) and not (name == "mkdir" and Path(arguments[0]).exists()):
                        count(f"{name} {arguments[which]}")
                        is_synced = name == "fsync"
                    return function(*arguments, **settings)

                setattr(place, name, wrapper)

            def note_open(event: str, arguments: tuple[object, ...]) -> None:
                nonlocal is_synced
                if event == "open" and set(str(arguments[1])) & set("wax+"):
                    is_synced = False
                    if "/checkpoints/" in str(arguments[0]):
                        count(f"open {arguments[0]}")

            for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
                counted(os, name)
            counted(safetensors.torch, "serialize_file", 1)  # it opens its files itself
            sys.addaudithook(note_open)

        _, status = os.waitpid(child(config, arm), 0)
        if status == 0:
            return
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status


def fill_the_disk(config: PretrainConfig) -> None:
    """No file may grow beyond 20 kB."""
    _, status = os.waitpid(child(config, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))), 0)
    assert os.waitstatus_to_exitcode(status) == 1


if __name__ == "__main__":
    config = PretrainConfig.from_json(json.loads(Path(sys.argv[1]).read_text()))
    load_for_saving()
    if sys.argv[2] == "writes":
        kill_at_every_write(config)
    elif sys.argv[2] == "full":
        fill_the_disk(config)
    else:
        kill_at_random_moments(config, int(sys.argv[2]))

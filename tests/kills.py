"""A process that starts a run again and again, and kills it: `python kills.py CONFIG.json SECONDS...|WRITES`. Used by test_kills.py.

It forks children from a process that has loaded the libraries but trained nothing: a start takes no time.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import safetensors.torch
import torch
import transformers.models.electra.modeling_electra  # noqa: F401  # loaded once, here

from electrakit import pretrain
from electrakit.pretrain_config import PretrainConfig, from_json


def child(config: PretrainConfig, before: object = None) -> int:
    """Run it in a child; its process number."""
    pid = os.fork()
    if not pid:
        try:
            torch.set_num_threads(1)
            if callable(before):
                before()
            pretrain(config)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def kill_at_random_moments(config: PretrainConfig, num_kills: int) -> None:
    """So often, or until it is complete: a life is a part of what a whole run takes."""
    chance, num_done = random.Random(0), 0
    while True:
        pid = child(config)
        life = 10**6 if num_done == num_kills else chance.uniform(0.05, 1.0)
        deadline = time.monotonic() + life
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert status == 0, status
                print(f"killed {num_done} times")
                return
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        num_done += 1


def kill_at_every_write(config: PretrainConfig) -> None:
    """Before the first file, sync or rename, before the second one, ...: until a run meets no more of them.

    From a new checkpoint on, all of it again. Prints what each kill came before.
    """
    number, checkpoints = 0, None
    while True:
        before, checkpoints = checkpoints, sorted(Path(config.run or "").glob("checkpoints/step_*"))
        number = number + 1 if before == checkpoints else 1

        def arm(number: int = number) -> None:
            calls = 0

            def count(what: str) -> None:
                nonlocal calls
                calls += 1
                if calls == number:
                    print(what, flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

            def counted(place, name, which=0):
                function = getattr(place, name)

                def wrapper(*arguments, **settings):
                    count(f"{name} {arguments[which]}")
                    return function(*arguments, **settings)

                setattr(place, name, wrapper)

            def note_open(event: str, arguments: tuple[object, ...]) -> None:
                if event == "open" and "/checkpoints/" in str(arguments[0]) and set(str(arguments[1])) & set("wax+"):
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
    config = from_json(json.loads(Path(sys.argv[1]).read_text()))
    if sys.argv[2] == "writes":
        kill_at_every_write(config)
    elif sys.argv[2] == "full":
        fill_the_disk(config)
    else:
        kill_at_random_moments(config, int(sys.argv[2]))

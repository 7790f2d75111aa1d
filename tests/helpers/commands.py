"""Commands of electra in children of one process that has loaded the libraries and done nothing else: a start takes no time.

    with open_commands(shim) as run:
        done = run("pretrain", "tiny", ..., faults=(Fault("write", errno.ENOSPC, folder, skip=7),))
        done.code, done.said, done.num_met

As a program (`python -m tests.helpers.commands`) it is that process: a line of JSON in for each command, a line of JSON out.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.processes import HANG

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "tests" / "faults" / "shim.c"


class Fault(NamedTuple):
    """A rule of shim.c: this call fails with this errno, or sends the signal -errno, below a folder."""

    call: str
    error: int
    folder: Path
    count: int = -1
    skip: int = 0

    def __str__(self) -> str:
        return ",".join(map(str, self))


class Done(NamedTuple):
    code: int
    """As of subprocess: negative for a signal."""
    said: str
    """On standard error."""
    num_met: int
    """Calls that the first of the faults is about, also those that worked; 0 after a kill."""
    peak: int
    """Resident memory, in bytes."""


def compile_shim(folder: Path) -> Path:
    made = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"], check=True)
    return made


class Commands:
    """`run(arguments)`: a command in a child of the process.

    faults: rules of the shim. memory: bytes of address space that it may get, besides what it begins with. signal: what it gets when its
    fine-tuning job of this number, from 1, begins to train: (number of the signal, number of the job).
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def __call__(
        self,
        *arguments: object,
        faults: Sequence[Fault] = (),
        memory: int | None = None,
        signal: tuple[int, int] | None = None,
    ) -> Done:
        assert self.process.stdin is not None and self.process.stdout is not None
        rules = ";".join(map(str, faults))
        request = {"arguments": list(map(str, arguments)), "faults": rules, "memory": memory, "signal": signal}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return Done(*json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def open_commands(shim: Path | None = None) -> Iterator[Commands]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if shim is not None:
        environment["LD_PRELOAD"] = str(shim)
    command = [sys.executable, "-m", "tests.helpers.commands"]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Commands(process)
        assert process.stdin is not None
        process.stdin.close()  # it ends


# The process


def serve() -> None:
    load_all()
    for line in sys.stdin:
        print(json.dumps(run_child(**json.loads(line))), flush=True)


def load_all() -> None:
    import optuna  # noqa: F401

    import electrakit.cli.verbs
    import electrakit.finetune.glue
    import electrakit.finetune.search  # noqa: F401
    from tests.helpers.kills import load_for_saving

    load_for_saving()


def run_child(arguments: list[str], faults: str, memory: int | None, signal: tuple[int, int] | None) -> Done:
    told, tell = os.pipe()
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                with Path(os.devnull).open("r+b") as nothing:
                    os.dup2(nothing.fileno(), 0)
                    os.dup2(nothing.fileno(), 1)
                os.dup2(said.fileno(), 2)
                arm(faults, memory, signal)
                code = run_command(arguments)
            finally:
                os.write(tell, str(num_met()).encode())
                os._exit(code)
        os.close(tell)
        end = time.monotonic() + HANG
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > end:
                os.kill(pid, 9)
            time.sleep(0.005)
        _, status, usage = os.wait4(pid, 0)
        number = int(os.read(told, 100) or b"0")
        os.close(told)
        said.seek(0)
        text = said.read().decode(errors="replace")
    return Done(os.waitstatus_to_exitcode(status), text, number, usage.ru_maxrss * 1024)


def run_command(arguments: list[str]) -> int:
    from electrakit.cli.main import main

    try:
        main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    return 1


def arm(faults: str, memory: int | None, at_job: tuple[int, int] | None) -> None:
    """What is to go wrong in this process."""
    import torch

    torch.set_num_threads(1)
    if at_job is not None:
        signal_at_job(*at_job)
    if faults:
        os.environ["ELECTRA_FAULTS"] = faults
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, resource.RLIM_INFINITY))


def num_met() -> int:
    return ctypes.CDLL(None).electra_calls_met(0) if os.environ.get("ELECTRA_FAULTS") else 0


def signal_at_job(number: int, job: int) -> None:
    """A real signal, between the start of a job and its first step."""
    from electrakit.finetune import train_job

    train_model, num_left = train_job.train_model, job

    def train_or_stop(*arguments: Any) -> list[float]:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            os.kill(os.getpid(), number)
        return train_model(*arguments)

    train_job.train_model = train_or_stop


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored where a shell started us in the background, or nohup
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    serve()

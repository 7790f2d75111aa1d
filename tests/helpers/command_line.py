"""The command line, run in the process of a test."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from electrakit.cli.main import main
from electrakit.train.signals import SIGNALS


def electra(*arguments: Any) -> Any:
    """The exit code of a command; who listens for signals is as before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with pytest.raises(SystemExit) as stop:
            main(list(map(str, arguments)))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return stop.value.code


def electra_killed_in_job(number: int, *arguments: Any) -> None:
    """Run a command in another process, which is killed when its fine-tuning job of this number, from 1, begins to train."""
    script = Path(__file__).with_name("killed_job.py")
    command = [sys.executable, str(script), str(number), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr

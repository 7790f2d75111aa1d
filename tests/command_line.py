"""The command line, run in the process of a test."""

import signal
from typing import Any

import pytest

from electrakit.cli import main
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

"""The command line, run in the process of a test."""

import signal
from typing import Any

import pytest

from electrakit.cli import main


def electra(*arguments: Any) -> Any:
    """The exit code of a command; the handler of SIGTERM is put back."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    signal.signal(signal.SIGTERM, before)
    return stop.value.code

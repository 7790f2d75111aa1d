"""Waiting for real processes: for what they do, not for seconds."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

HANG = 3600
"""Seconds after which a test that hangs gives up. No machine that works comes near it."""


def wait_until(condition: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> None:
    """Check again and again until the condition holds; an error if the process that is to bring it about has ended."""
    end = time.monotonic() + HANG
    while not condition():
        assert process is None or process.poll() is None, f"ended before: {process.communicate() if process else ''}"
        assert time.monotonic() < end, "it hangs"
        time.sleep(0.01)


def children_of(process: int) -> list[int]:
    """The processes that it has started; none where it has ended. Reads /proc."""
    try:
        return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
    except OSError:
        return []

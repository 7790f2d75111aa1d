"""Progress: a bar where someone watches, plain lines in a log, and both say how fast and how long."""

import io
import re
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from rich.console import Console

from electrakit.common.progress import progress
from tests.helpers.processes import wait_until


def shown(
    is_terminal: bool,
    updates: list[int],
    total: int | None,
    pause: float = 0.01,
    is_drawn: bool = False,
    title: str = "preparing",
    **settings,
) -> str:
    """What is printed if `pause` seconds of a made-up clock pass after each update; is_drawn: each is waited for on the screen."""
    screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=120, highlight=False)
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    with (
        patch("electrakit.common.progress.time", clock),
        patch("electrakit.common.progress.console", screen),
        progress(title, total, **settings) as update,
    ):
        for done in updates:
            update(done)
            now += pause
            for _ in range(2 if is_drawn else 0):  # the first may have begun before the update
                length = len(screen.file.getvalue())
                wait_until(lambda length=length: len(screen.file.getvalue()) > length)
    return screen.file.getvalue()


def test_a_log_gets_plain_lines_with_amount_rate_and_time_left():
    text = shown(False, [1_000_000, 2_000_000, 3_000_000], 8_000_000, pause=11)
    line = r"preparing: 2\.0 MB of 8\.0 MB, [\d,.]+ MB/s, [\d,]+ s left"
    assert re.search(line, text) and "\x1b" not in text and "\r" not in text
    assert text.splitlines()[-1].startswith("preparing: done, 3.0 MB in ")


def test_a_log_gets_few_lines():
    assert len(shown(False, list(range(0, 1000, 10)), 1000, pause=0.0001).splitlines()) == 1


def test_a_total_that_is_not_known_is_not_made_up():
    for total in (None, 0):
        text = shown(False, [1_000_000, 2_000_000], total, pause=11)
        assert re.search(r"preparing: 2\.0 MB, [\d,.]+ MB/s\n", text) and "left" not in text
        assert "100%" not in shown(True, [1_000_000, 2_000_000], total)


def test_a_terminal_shows_amount_and_rate_where_the_total_is_not_known():
    text = shown(True, [1_000_000, 2_000_000, 4_000_000], None, is_drawn=True)
    assert re.search(r"4\.0 MB .*MB/s", text) and "left" not in text and "%" not in text


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_failed_is_not_called_done(is_terminal):
    screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=120)
    with (
        patch("electrakit.common.progress.console", screen),
        pytest.raises(ValueError),
        progress("reading", 10) as update,
    ):
        update(4)
        raise ValueError
    assert "done" not in screen.file.getvalue() and "100%" not in screen.file.getvalue()


def test_what_is_small_may_be_silent():
    assert shown(False, [10, 20], 20, silent_below=21) == "" == shown(True, [10, 20], 20, silent_below=21)
    assert "done" in shown(False, [10, 20], 20, silent_below=20)


def test_a_terminal_gets_a_bar_with_percentage_rate_and_time_left():
    text = shown(True, [1_000_000, 2_000_000, 4_000_000], 8_000_000, is_drawn=True)
    assert "━" in text and re.search(r"50%.*MB/s.*left.*\d:\d\d:\d\d", text.replace("\n", " "))
    assert "100%" in text


def test_what_was_done_before_this_start_is_not_taken_for_speed():
    text = shown(False, [900_000_000, 911_000_000], 1_000_000_000, pause=11)
    rate = float(re.search(r"([\d.,]+) MB/s", text)[1].replace(",", ""))
    assert rate < 2


def test_names_with_brackets_are_shown_as_they_are():
    text = shown(False, [1_000_000, 2_000_000], 10_000_000, pause=11, title="[/x] [bold]")
    assert text.startswith("[/x] [bold]: 2.0 MB of 10.0 MB")

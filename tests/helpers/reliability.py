"""The table of promises: what each fault test promises, how many trials were made, and how many held.

    @pytest.mark.promise("Training", "killed at random moments", "the same bits at the end")
    def test_...(trials):
        for seed in trials:
            ...

A test without the fixture is one trial; `cases=` says how many are inside one. `make reliability` runs all of them with more trials
and writes docs/reliability.md.
"""

import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HEAD = """# Reliability

What happens to a user's work when something fails, tried with real processes, real signals and damaged files. Every row is a test of the
project. `make reliability` runs them all and writes this page.

{date}: {held} of {trials} trials held ({machine}).
"""


class Row(NamedTuple):
    part: str
    fault: str
    promise: str


class Trials:
    """The seeds of a test's trials; counts those that were begun and those that held."""

    def __init__(self, number: int) -> None:
        self.number, self.num_begun, self.num_held = number, 0, 0

    def __iter__(self) -> Iterator[int]:
        for seed in range(self.number):
            self.num_begun += 1
            yield seed
            self.num_held += 1

    def count(self, number: int) -> None:
        """That many trials have held that the test did not take from here, such as a kill before each write."""
        self.num_begun, self.num_held = self.num_begun + number, self.num_held + number


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reliability", type=Path, help="write the table of promises to this file")
    parser.addoption("--trials", type=int, default=2, help="trials of each promise that can be tried often")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(part, fault, promise, cases=1): a row of docs/reliability.md")


@pytest.fixture
def trials(request: pytest.FixtureRequest) -> Trials:
    made = Trials(request.config.getoption("trials"))
    request.node.stash[TRIALS] = made
    return made


TRIALS = pytest.StashKey[Trials]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """The counts travel with the report, from a worker of xdist to the process that writes the page."""
    outcome = yield
    report, mark = outcome.get_result(), item.get_closest_marker("promise")
    if mark is None or report.when != "call" or report.skipped:
        return
    made = item.stash.get(TRIALS, None)
    if made is None or not made.num_begun:
        cases = mark.kwargs.get("cases", 1)
        counts = (cases, cases * report.passed)
    else:  # an assertion after the last trial belongs to it
        counts = (made.num_begun, made.num_held if report.passed else min(made.num_held, made.num_begun - 1))
    report.user_properties.append(("promise", [*mark.args, *counts]))


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    yield
    if (path := config.getoption("reliability")) is None:
        return
    results: dict[Row, tuple[int, int]] = {}
    for report in [each for reports in terminalreporter.stats.values() for each in reports]:
        for name, value in getattr(report, "user_properties", ()):
            if name == "promise":
                row, before = Row(*value[:3]), results.get(Row(*value[:3]), (0, 0))
                results[row] = (before[0] + value[3], before[1] + value[4])
    path.write_text(page(results), encoding="utf-8")
    terminalreporter.write_line(f"{path}: {len(results)} promises")


def page(results: dict[Row, tuple[int, int]]) -> str:
    """The page: one table for each part of the toolkit."""
    num_trials, num_held = (sum(counts[place] for counts in results.values()) for place in (0, 1))
    lines = [
        HEAD.format(
            date=datetime.now(UTC).date(),
            held=f"{num_held:,}",
            trials=f"{num_trials:,}",
            machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
        )
    ]
    for part in dict.fromkeys(sorted(row.part for row in results)):
        lines += [f"## {part}", "", "| fault | promise | trials | held |", "|---|---|--:|--:|"]
        for row in sorted(row for row in results if row.part == part):
            made, held = results[row]
            lines.append(f"| {row.fault} | {row.promise} | {made:,} | {held:,} |")
        lines.append("")
    return "\n".join(lines)

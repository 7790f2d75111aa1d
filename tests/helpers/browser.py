"""A real browser for the tests of pages: Debian's chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from tests.helpers.processes import HANG

OPEN: list[Any] = []  # a fixture that several files import is made for each, but playwright can be started once only
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")  # while it is open its thread has a running event loop, which others may not want
def chromium() -> Iterator[Any]:
    """A playwright Browser; where there is none the test is skipped, and says what to install."""
    if OPEN:
        yield OPEN[0]
        return
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(
            f"no browser: none of {', '.join(NAMES)} is on the PATH (make browser installs it for root on Debian)"
        )
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=HANG * 1000
        )
        OPEN.append(browser)
        yield browser
        OPEN.clear()
        browser.close()

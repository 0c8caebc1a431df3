"""Firefox instead of Chromium, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

    from tests.external.browser.browser_tab import TabPool


@pytest.fixture(scope="session")
def firefox(playwright: Playwright) -> Iterator[Browser]:
    """One Firefox for all tests."""
    from tests.external.browser.browser_tab import FIREFOX, firefox

    if not Path(FIREFOX).exists():
        pytest.skip(f"{FIREFOX} does not exist; install it with: apt-get install firefox-esr")
    started = firefox(playwright)
    yield started
    started.close()


@pytest.fixture(scope="session")
def tabs(firefox: Browser) -> Iterator[TabPool]:
    """The tabs of `open_tab`."""
    from tests.external.browser.browser_tab import TabPool

    pool = TabPool(firefox)
    yield pool
    pool.close()

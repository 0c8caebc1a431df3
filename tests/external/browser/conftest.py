"""Real Chromium with a real ng_viewer (make test-browser); without Playwright, nothing in this folder is collected."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.external.browser.browser_tab import Tab
    from tests.external.browser.recordings import Recordings

collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Rollout files of every kind."""
    from tests.external.browser.recordings import record

    return record(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="session")
def url(recordings: Recordings) -> Iterator[str]:
    """The address of a viewer with all recordings."""
    from tests.external.browser.viewer import viewing

    with viewing(recordings.paths, recordings.played.parent) as started:
        yield started


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    from tests.external.browser.browser_tab import chromium

    with chromium() as started:
        yield started


@pytest.fixture
def open_tab(browser: Browser, url: str) -> Iterator[Callable[..., Tab]]:
    """Opens tabs, each with a new profile; at the end no tab may have recorded a problem."""
    from tests.external.browser.browser_tab import Tab

    tabs: list[Tab] = []

    def opened(place: str = "#/", at: str = url, **options: object) -> Tab:
        tabs.append(Tab(browser, at, **options))
        return tabs[-1].go(place)

    yield opened
    for tab in tabs:
        tab.close()
    assert [problem for tab in tabs for problem in tab.problems] == []

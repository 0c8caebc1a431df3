"""Real browsers with a real ng_viewer (make test-browser); without Playwright, nothing in this folder is collected."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.external.browser.viewer import Started, viewing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

    from tests.external.browser.browser_tab import Tab, TabPool
    from tests.external.browser.recordings import Recordings

collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Rollout files of every kind. With pytest-xdist, the first worker records them for all."""
    from tests.external.browser.recordings import Recordings, record

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "recordings.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder /= "recordings"
        if not (folder / "complete").exists():
            folder.mkdir()
            record(folder)
            (folder / "complete").touch()
    return Recordings.of(folder)


@pytest.fixture(scope="session")
def url(recordings: Recordings) -> Iterator[str]:
    """The address of a viewer with all recordings, unless a module has its own."""
    with viewing(recordings.paths, recordings.played.parent) as started:
        yield started


def viewers() -> Iterator[Started]:
    """Starts viewers of files. Tests name it before `open_tab`, so that tabs are given back before a viewer ends."""
    with contextlib.ExitStack() as stack:
        yield lambda *paths, more=(): stack.enter_context(viewing(paths, paths[0].parent, *more))


viewer = pytest.fixture(viewers)
module_viewer = pytest.fixture(viewers, scope="module")


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    from tests.external.browser.browser_tab import playing

    with playing() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    from tests.external.browser.browser_tab import chromium

    started = chromium(playwright)
    yield started
    started.close()


@pytest.fixture(scope="session")
def tabs(browser: Browser) -> Iterator[TabPool]:
    from tests.external.browser.browser_tab import TabPool

    pool = TabPool(browser)
    yield pool
    pool.close()


@pytest.fixture
def open_tab(tabs: TabPool, url: str) -> Iterator[Callable[..., Tab]]:
    """Opens tabs (see `TabPool.open`); at the end no tab may have recorded a problem."""

    def opened(place: str = "#/", at: str = url, **options: object) -> Tab:
        return tabs.open(at, place, **options)  # type: ignore[arg-type]

    yield opened
    assert tabs.give_back() == []

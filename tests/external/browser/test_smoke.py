"""One page in Chromium, of a viewer that the installed program started; the file needs no stack that records it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.external.browser.browser_tab import Tab
from tests.external.browser.viewer import installed_viewer
from tests.support.rollout_files import random_rows, write

TASKS, REPEATS = 3, 2


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the viewer."""
    with installed_viewer(write(tmp_path_factory.mktemp("smoke") / "run.jsonl", random_rows(TASKS, REPEATS))) as url:
        yield url


@pytest.mark.smoke
def test_the_list_of_a_file_leads_to_the_conversation_of_a_rollout(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("#/runs/0")
    expect(tab.find("table.wide tbody tr.link")).to_have_count(TASKS * REPEATS)
    tab.find("table.wide tbody a").first.click()
    expect(tab.find("article.event").first).to_be_visible()

"""The exported page: one file without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.external.browser.browser_tab import COUNT, Open
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import exported

ROWS = "table.wide tbody tr.link"
SEARCH = "#/runs/0?q=solve+this+sokoban"


@pytest.fixture(scope="module")
def export(recordings: Recordings, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("export") / "page.html"
    return exported([recordings.played, recordings.again], out).as_uri()


def test_it_searches_and_opens_the_next_rollout_and_a_comparison_without_a_server(open_tab: Open, export: str) -> None:
    tab = open_tab(SEARCH, at=export)
    assert tab.find(ROWS).count() > 1
    assert tab.go("#/runs/0?q=nobody-says-this").find(ROWS).count() == 0
    tab.go("#/runs/0/tasks/0/0")
    tab.page.keyboard.press("]")
    expect(tab.find("main h1")).to_have_text("Task 0 repeat 1")
    tab.go("#/compare/0/1")
    tab.find("tbody a").first.click()
    tab.find(".side-by-side").wait_for()


def test_a_search_in_an_export_shows_how_many_rollouts_are_missing(
    open_tab: Open, recordings: Recordings, tmp_path: Path
) -> None:
    page = exported([recordings.played], tmp_path / "part.html", "+export_limit=10").as_uri()
    status = open_tab(SEARCH, at=page).find(COUNT)
    for text in ("10 rollouts in this file", "other 38 rollouts"):
        expect(status).to_contain_text(text)


def test_attacks_are_harmless_in_an_exported_page(open_tab: Open, recordings: Recordings, tmp_path: Path) -> None:
    page = exported([recordings.attacks], tmp_path / "attacks.html").as_uri()
    for place in ("#/", "#/runs/0", "#/runs/0/tasks/4/0"):
        assert "Rollyard" in open_tab(place, at=page).page.title()

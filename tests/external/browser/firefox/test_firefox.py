"""The viewer in Firefox: every page, and what a browser could do differently from Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.external.browser.accessibility import PLACES
from tests.external.browser.attacks import ATTACKS
from tests.external.browser.browser_tab import Open
from tests.external.browser.recordings import Recordings
from tests.external.browser.test_attacks import RUN, check_unharmed
from tests.external.browser.test_report_pages import HUNT, page_count, report_of
from tests.external.browser.viewer import exported
from tests.support.stacks import read_rows

ROWS = "table.wide tbody tr"
LATE = HUNT / "late.jsonl"
PHONE = {"width": 390, "height": 844}
IS_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.mark.parametrize("name", PLACES)
def test_every_page_opens_without_an_error_and_fits_on_a_phone(open_tab: Open, name: str) -> None:
    tab = open_tab(PLACES[name], viewport=PHONE)
    expect(tab.find("main h1")).to_have_count(1)
    assert not tab.page.evaluate(IS_WIDE)


def test_the_board_moves_and_the_conversation_is_complete(open_tab: Open, recordings: Recordings) -> None:
    row = next(row for row in read_rows(recordings.played) if row["success"])
    tab = open_tab(f"#/runs/0/tasks/{row['_ng_task_index']}/{row['_ng_rollout_index']}")
    expect(tab.find("article.event")).to_have_count(2 + len(row["response"]["output"]))
    expect(tab.find(".screen").first.locator(".box.done")).to_have_count(row["num_boxes"])
    tab.page.keyboard.press("Home")
    expect(tab.find(".screen .caption").first).to_contain_text("start")
    expect(tab.find(".screen").first.locator(".box:not(.done)").first).to_be_visible()
    tab.page.keyboard.press("End")
    expect(tab.find(".screen").first.locator(".box.done")).to_have_count(row["num_boxes"])


@pytest.mark.parametrize("number", [0, 3, 10, len(ATTACKS)])
def test_a_rollout_cannot_inject_anything(open_tab: Open, number: int) -> None:
    tab = open_tab(f"#/runs/{RUN}/tasks/{number}/0")
    tab.find("details.raw > summary").click()
    tab.find(".raw .text").wait_for()
    check_unharmed(tab)


def test_an_exported_page_works_without_a_server(open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab("#/runs/0?sort=-reward", at=exported([LATE], tmp_path / "page.html").as_uri())
    tab.find(f"{ROWS} a").first.click()
    expect(tab.find("article.event").first).to_be_visible()


def test_the_report_prints_as_pages_of_a_pdf(firefox: Browser, tmp_path: Path) -> None:
    printed = firefox.new_page()
    printed.goto(report_of(tmp_path / "profile.html", LATE))
    assert 2 <= page_count(printed.pdf(format="A4")) <= 12
    printed.close()

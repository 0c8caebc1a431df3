"""The viewer in Firefox: every page, and what a browser could do differently from Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.load import load
from rollyard.analysis.report.document import Report
from rollyard.analysis.report.html import html
from rollyard.records.search_path import INSTALLED
from tests.external.browser.attacks import ATTACKS
from tests.external.browser.browser_tab import Tab
from tests.external.browser.pdf_pages import page_count
from tests.external.browser.places import PLACES
from tests.external.browser.reading_rows import ANSWER, TURNS, reading_rows
from tests.external.browser.recordings import Recordings
from tests.external.browser.test_attacks import RUN, check_unharmed
from tests.external.browser.viewer import exported, viewing
from tests.support.rollout_files import write
from tests.support.stacks import read_rows

Open = Callable[..., Tab]
ROWS = "table.wide tbody tr"
LATE = INSTALLED / "examples" / "hunt" / "recorded" / "late.jsonl"
PHONE = {"width": 390, "height": 844}
IS_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.mark.parametrize("name", PLACES)
def test_every_page_opens_without_an_error_and_fits_on_a_phone(open_tab: Open, name: str) -> None:
    tab = open_tab(PLACES[name], viewport=PHONE)
    expect(tab.find("main h1")).to_have_count(1)
    assert not tab.page.evaluate(IS_WIDE)


def test_the_list_filters_and_sorts_and_is_restored_from_its_address(open_tab: Open, recordings: Recordings) -> None:
    rewards = sorted(round(row["reward"], 4) for row in read_rows(recordings.played) if row["success"])
    tab = open_tab("#/runs/0")
    tab.page.get_by_label("Success").select_option("true")
    expect(tab.find(ROWS)).to_have_count(len(rewards))
    tab.find("thead button", has_text="reward").click()
    expect(tab.find("thead th[aria-sort=descending]")).to_contain_text("reward")
    tab.page.reload()
    expect(tab.find(ROWS)).to_have_count(len(rewards))
    cells = tab.find(f"{ROWS} td:nth-child(4)").all_inner_texts()
    assert [float(cell.replace("−", "-")) for cell in cells] == rewards[::-1]


def test_keys_lead_from_the_list_to_a_rollout_and_the_next_one(open_tab: Open) -> None:
    tab = open_tab("#/runs/0")
    for key in ("j", "j", "Enter"):
        tab.page.keyboard.press(key)
    expect(tab.find("main h1")).to_have_text("Task 0 repeat 1")
    expect(tab.find("nav[aria-label=Neighbours] a", has_text="Next")).to_be_visible()
    tab.page.keyboard.press("]")
    expect(tab.find("main h1")).to_have_text("Task 0 repeat 2")
    tab.page.keyboard.press("?")
    expect(tab.find("dialog.help")).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(tab.find("dialog.help")).to_be_hidden()


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


def test_the_text_of_an_answer_is_complete_and_matches_are_marked(open_tab: Open, tmp_path: Path) -> None:
    with viewing([write(tmp_path / "reading.jsonl", reading_rows())], tmp_path) as url:
        tab = open_tab("#/runs/0/tasks/0/0?q=needle", at=url)
        assert tab.find("article.answer .text").last.text_content() == ANSWER
        assert tab.page.evaluate("CSS.highlights.get('find').size") == TURNS - 1
        tab.close()


def test_the_theme_changes_the_colours(open_tab: Open) -> None:
    tab = open_tab(new=True)
    papers = set()
    for _ in range(3):
        papers.add(tab.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        tab.page.keyboard.press("t")
    assert len(papers) == 2


@pytest.mark.parametrize("number", [0, 3, 10, len(ATTACKS)])
def test_a_rollout_cannot_inject_anything(open_tab: Open, number: int) -> None:
    tab = open_tab(f"#/runs/{RUN}/tasks/{number}/0")
    tab.find("details.raw > summary").click()
    tab.find(".tree").wait_for()
    check_unharmed(tab)


def test_an_exported_page_works_without_a_server(open_tab: Open, tmp_path: Path) -> None:
    tab = open_tab("#/runs/0?sort=-reward", at=exported([LATE], tmp_path / "page.html").as_uri())
    tab.find(f"{ROWS} a").first.click()
    expect(tab.find("article.event").first).to_be_visible()


def test_the_report_prints_as_pages_of_a_pdf(firefox: Browser, tmp_path: Path) -> None:
    run = load(LATE)
    path = tmp_path / "profile.html"
    path.write_text(html(Report(version="1", runs=[run.profile], differences=[], findings=[findings_of(run)])))
    context = firefox.new_context()
    printed = context.new_page()
    printed.goto(path.as_uri())
    pdf = printed.pdf(format="A4")
    context.close()
    assert 2 <= page_count(pdf) <= 12

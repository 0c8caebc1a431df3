"""The list of rollouts: filters, sorting, search and keyboard; its state is in the address; the exported page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.external.browser.browser_tab import COUNT, Open
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import Started, exported
from tests.support.stacks import read_rows

ROWS = "table.wide tbody tr.link"


def test_a_filter_is_stored_in_the_address_and_restored_from_it(open_tab: Open, recordings: Recordings) -> None:
    solved = sum(row["success"] for row in read_rows(recordings.played))
    tab = open_tab("#/runs/0")
    tab.page.get_by_label("Success").select_option("true")
    expect(tab.find(ROWS)).to_have_count(solved)
    assert "success=true" in tab.page.url
    tab.page.reload()
    expect(tab.find(ROWS)).to_have_count(solved)
    expect(tab.page.get_by_label("Success")).to_have_value("true")


def test_a_click_on_a_column_header_sorts_and_a_second_one_reverses_it(open_tab: Open, recordings: Recordings) -> None:
    wanted = sorted(round(row["reward"], 4) for row in read_rows(recordings.played))
    tab = open_tab("#/runs/0")
    for direction, rewards in (("descending", wanted[::-1]), ("ascending", wanted)):
        tab.find("thead button", has_text="reward").click()
        expect(tab.find(f"thead th[aria-sort={direction}]")).to_contain_text("reward")
        tab.settled()
        cells = tab.find(f"{ROWS} td:nth-child(4)").all_inner_texts()
        assert [float(cell.replace("−", "-")) for cell in cells] == rewards


def test_brackets_step_through_the_list_that_was_open_before(open_tab: Open) -> None:
    tab = open_tab("#/runs/0?sort=-reward&success=true")
    wanted = tab.find(f"{ROWS} a").evaluate_all("links => links.slice(0, 3).map((a) => a.ariaLabel)")
    tab.find(f"{ROWS} a").first.click()
    for key, name in (("]", wanted[1]), ("]", wanted[2]), ("[", wanted[1])):
        expect(tab.find("nav[aria-label=Neighbours] a", has_text="Next")).to_be_visible()
        tab.page.keyboard.press(key)
        expect(tab.find("main h1")).to_have_text(name.replace(",", ""))
    tab.page.keyboard.press("u")
    expect(tab.find(f"{ROWS} a").first).to_have_attribute("aria-label", wanted[0])
    assert "sort=-reward" in tab.page.url and "success=true" in tab.page.url


def test_filters_that_are_set_quickly_are_all_applied(open_tab: Open) -> None:
    tab = open_tab("#/runs/0")
    # In one step, so that the second field changes before the first one is applied.
    tab.page.evaluate(
        """() => ['from', 'to'].forEach((hint, at) => {
            const field = document.querySelector(`[aria-label="Reward, ${hint}"]`);
            field.value = [-1, 5][at];
            field.dispatchEvent(new Event('input', { bubbles: true }));
        })"""
    )
    for wanted in ("**min_reward=-1*", "**max_reward=5*"):
        tab.page.wait_for_url(wanted)
    assert "min_reward=-1" in tab.page.url


def test_an_open_list_follows_a_file_that_another_program_changes(
    viewer: Started, open_tab: Open, recordings: Recordings, tmp_path: Path
) -> None:
    lines = recordings.played.read_bytes().splitlines(keepends=True)
    path = tmp_path / "changing.jsonl"
    path.write_bytes(b"".join(lines[:6]))
    tab = open_tab("#/runs/0", at=viewer(path))
    expect(tab.find(ROWS)).to_have_count(6)
    with path.open("ab") as file:
        file.write(b"".join(lines[6:10]))
    expect(tab.find(ROWS)).to_have_count(10)
    expect(tab.find(COUNT)).to_contain_text("10 rollouts")


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

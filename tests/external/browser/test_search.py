"""Search results show what matched, and open the rollout at the match."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open, Tab
from tests.external.browser.viewer import Started, exported
from tests.support.rollout_files import row, write

RESULTS = "table.wide tbody tr.link"
SNIPPETS = "table.wide tbody tr.snippet"
PLACE = "#/runs/0?q=needle"


def long_rollout(task: int) -> Json:
    """A rollout with 40 turns; the results of turn 30 in the first four tasks contain the word `needle`."""
    made = row(task, 0, float(task % 2), success=task % 2 == 1, note="a needle in a field" if task == 4 else "none")
    turns: list[Json] = []
    for turn in range(1, 41):
        word = "a NEEDLE <b>here</b>" if turn == 30 and task < 4 else "nothing"
        call, text = {"call_id": str(turn)}, f"line\n\n {word}\n" + "far away " * 40
        turns.append({"type": "function_call", "name": "look", "arguments": f'{{"turn":{turn}}}', **call})
        turns.append({"type": "function_call_output", "output": text, **call})
    made["response"]["output"] = turns
    return made


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("searched") / "searched.jsonl", map(long_rollout, range(6)))


@pytest.fixture(scope="module")
def url(module_viewer: Started, searched: Path) -> str:
    return module_viewer(searched)


def test_a_result_shows_what_matched_and_opens_at_the_match(open_tab: Open) -> None:
    tab = open_tab(PLACE)
    expect(tab.find(RESULTS)).to_have_count(5)
    expect(tab.find(SNIPPETS).first).to_contain_text("turn 30, result of look line a NEEDLE <b>here</b> far away")
    expect(tab.find(f"{SNIPPETS} mark").first).to_have_text("NEEDLE")
    expect(tab.find(SNIPPETS).last).to_contain_text("in the field note")
    tab.find(f"{SNIPPETS} a").first.click()
    expect(tab.find(".findbar [role=status]")).to_have_text("1 of 1")
    expect(tab.find("article[data-index='60']")).to_be_in_viewport()
    tab.page.keyboard.press("]")
    expect(tab.find("main h1")).to_contain_text("Task 1")
    assert "match=" not in tab.page.url


def test_j_goes_from_result_to_result(open_tab: Open) -> None:
    tab = open_tab(PLACE)
    for _ in range(2):
        tab.page.keyboard.press("j")
    expect(tab.find(f"{RESULTS} th a").nth(1)).to_be_focused()


def test_an_export_shows_what_matched_and_has_the_columns_of_a_view(
    open_tab: Open, searched: Path, tmp_path: Path
) -> None:
    page = exported([searched], tmp_path / "page.html", "+view=sort=-reward&columns=reward,note,(prompt)")
    tab = open_tab("#/runs/0", at=page.as_uri())
    expect(tab.find("thead th").nth(2)).to_have_text("note")
    expect(tab.find("thead th[aria-sort=descending]")).to_contain_text("reward")
    tab.go(PLACE)
    expect(tab.find(f"{SNIPPETS} mark").first).to_have_text("NEEDLE")


def test_search_results_are_accessible_and_fit(open_tab: Open) -> None:
    def opened(place: str, **options: object) -> Tab:
        tab = open_tab(place, **options)
        box = tab.find(f"{SNIPPETS} div").first.bounding_box()
        assert box is not None and box["x"] >= 0
        return tab

    check_accessible(opened, PLACE)

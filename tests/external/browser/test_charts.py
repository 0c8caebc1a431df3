"""Charts with pointer and keyboard: marks link to rollouts, a series shows its values."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.external.browser.browser_tab import Open, figure, point
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import Started
from tests.support.stacks import read_rows

ROWS = "table.wide tbody tr"


def test_a_click_on_a_bar_lists_its_rollouts(open_tab: Open) -> None:
    tab = open_tab("#/")
    mark = figure(tab, "Rewards").locator("a.mark").last
    count = int((mark.get_attribute("aria-label") or "").split(": ")[1].split()[0])
    mark.locator(".hit").click()
    expect(tab.find(ROWS)).to_have_count(count)
    assert "min_reward=" in tab.page.url


def test_a_label_can_be_focused_and_opened_with_the_keyboard(open_tab: Open) -> None:
    tab = open_tab("#/")
    link = figure(tab, "Why episodes ended").locator("svg a").first
    link.focus()
    expect(link).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.find(ROWS).first).to_be_visible()
    assert "end=" in tab.page.url


def test_a_chart_keeps_the_focus_when_it_is_redrawn(
    viewer: Started, open_tab: Open, recordings: Recordings, tmp_path: Path
) -> None:
    lines = recordings.played.read_bytes().splitlines(keepends=True)
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(b"".join(lines[:20]))
    tab = open_tab("#/", at=viewer(growing))
    link = figure(tab, "Why episodes ended").locator("svg a").first
    link.focus()
    with growing.open("ab") as file:
        file.write(b"".join(lines[20:]))
    expect(tab.find(".tile .large").first).to_have_text(str(len(lines)))
    expect(link).to_be_focused()


def test_the_pointer_shows_the_exact_log_probability_of_a_token(open_tab: Open, recordings: Recordings) -> None:
    row = read_rows(recordings.tokens)[1]
    calls = sum("generation_token_ids" in item for item in row["response"]["output"])
    tab = open_tab(f"#/runs/2/tasks/{row['_ng_task_index']}/{row['_ng_rollout_index']}")
    chart = tab.find("section.tokens .figure")
    point(tab, chart, 4 / (8 * calls - 1))  # each model call has 8 tokens
    expect(chart.locator(".readout")).to_have_text("token 4: log-probability −6, 0.2%")

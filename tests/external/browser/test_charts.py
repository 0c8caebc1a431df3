"""Charts with pointer and keyboard: marks link to rollouts, a series shows its values and can be zoomed."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.external.browser.browser_tab import Open, Tab
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import running_stack, viewing
from tests.support.stacks import read_rows

ROWS = "table.wide tbody tr"
TOKENS = "#/runs/2/tasks/0/1"


def figure(tab: Tab, title: str) -> Locator:
    return tab.find(".figure").filter(has=tab.page.get_by_role("heading", name=title, exact=True)).first


def point(tab: Tab, chart: Locator, place: float) -> None:
    """Move the pointer to a position in a series, from 0 to 1."""
    box = chart.locator(".area").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + place * box["width"], box["y"] + box["height"] / 2)


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


def test_a_chart_keeps_the_focus_when_it_is_redrawn(open_tab: Open, recordings: Recordings, tmp_path: Path) -> None:
    lines = recordings.played.read_bytes().splitlines(keepends=True)
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(b"".join(lines[:20]))
    with viewing([growing], tmp_path) as url:
        tab = open_tab("#/", at=url)
        link = figure(tab, "Why episodes ended").locator("svg a").first
        link.focus()
        with growing.open("ab") as file:
            file.write(b"".join(lines[20:]))
        expect(tab.find(".tile .large").first).to_have_text(str(len(lines)))
        expect(link).to_be_focused()
        tab.close()


def last_token(recordings: Recordings) -> int:
    """The number of the last generated token of TOKENS; each model call has 8."""
    keys = ("_ng_task_index", "_ng_rollout_index")
    (row,) = (row for row in read_rows(recordings.tokens) if [row[key] for key in keys] == [0, 1])
    return 8 * sum("generation_token_ids" in item for item in row["response"]["output"]) - 1


def test_the_pointer_shows_the_exact_log_probability_of_a_token(open_tab: Open, recordings: Recordings) -> None:
    tab = open_tab(TOKENS)
    chart = tab.find("section.tokens .figure")
    chart.scroll_into_view_if_needed()
    point(tab, chart, 4 / last_token(recordings))
    expect(chart.locator(".readout")).to_have_text("token 4: log-probability −6, 0.2%")


def check_zoom(tab: Tab, last: int) -> None:
    """A drag zooms in; the button and a double click zoom out. `last`: the number of the last token."""
    chart = tab.find("section.tokens .figure")
    chart.scroll_into_view_if_needed()
    ticks = chart.locator(".tick").all_text_contents()
    for back in ("button", "double click"):
        point(tab, chart, 10 / last)
        tab.page.mouse.down()
        point(tab, chart, 0.7)
        expect(chart.locator(".dragged")).to_have_count(1)
        point(tab, chart, 0.9)
        tab.page.mouse.up()
        expect(chart.locator("svg.chart > text.start").last).to_have_text("10")
        point(tab, chart, 0.0)
        expect(chart.locator(".readout")).to_contain_text("token 10:")
        if back == "button":
            chart.get_by_role("button", name="show all").click()
        else:
            box = chart.locator(".area").bounding_box() or {}
            tab.page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expect(chart.locator(".tick").last).to_have_text(ticks[-1])


def test_a_drag_zooms_in(open_tab: Open, recordings: Recordings) -> None:
    check_zoom(open_tab(TOKENS), last_token(recordings))


def test_the_pace_of_a_running_run_is_drawn(open_tab: Open, recordings: Recordings, tmp_path: Path) -> None:
    with running_stack(tmp_path), viewing([recordings.played], tmp_path) as url:
        tab = open_tab("#/live", at=url)
        pace = tab.find("section[aria-label=Pace]")
        expect(pace.locator("svg.chart")).to_have_count(2)
        point(tab, pace.locator(".figure").first, 1.0)
        expect(pace.locator(".readout").first).to_contain_text("now: ")
        expect(pace.locator(".readout").first).to_contain_text("in progress")
        tab.close()

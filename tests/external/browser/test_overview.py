"""The overview of a run, its charts, its findings, and the comparison of two runs."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from playwright.sync_api import expect

from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.load import load
from rollyard.records.data_files import INSTALLED
from tests.external.browser.browser_tab import Open, figure, point
from tests.external.browser.recordings import REPEATS, TASKS, Recordings
from tests.external.browser.viewer import Started
from tests.support.stacks import read_rows

ROWS = "table.wide tbody tr"
HUNT = INSTALLED / "examples" / "hunt" / "recorded"


def test_the_overview_shows_the_measured_rollouts_and_the_success_rate(open_tab: Open, recordings: Recordings) -> None:
    rows = read_rows(recordings.played)
    solved = sum(row["success"] for row in rows) / len(rows)
    tiles = open_tab().find(".run").first.locator(".tile .large")
    assert tiles.nth(0).inner_text() == f"{TASKS * REPEATS} of {TASKS * REPEATS}"
    # Python and JavaScript round 56.25 differently.
    assert float(tiles.nth(1).inner_text().removesuffix("%")) == pytest.approx(solved * 100, abs=0.0501)


def test_charts_have_a_table_of_their_values(open_tab: Open) -> None:
    run = open_tab().find(".run").first
    assert run.locator("svg.chart").count() >= 4
    run.locator("summary", has_text="numbers").first.click()
    assert run.locator("figure table").first.locator("tbody tr").count() > 1


def test_every_run_links_to_its_rollouts(open_tab: Open) -> None:
    tab = open_tab()
    assert tab.find(".run").count() == 5
    tab.find(".run h2 a").nth(1).click()
    tab.page.wait_for_url("**#/runs/1")


def test_the_first_finding_names_the_exploit_with_the_figures_of_the_report(viewer: Started, open_tab: Open) -> None:
    tab = open_tab("#/runs/0/findings", at=viewer(HUNT / "late.jsonl", HUNT / "early.jsonl"))
    findings = findings_of(load(HUNT / "late.jsonl"))
    assert findings is not None
    first = tab.find(".finding").first
    expect(first.locator("h2")).to_contain_text("many answers")
    expect(first).to_contain_text(findings.findings[0].sentence)
    first.get_by_role("link", name="All").click()
    expect(tab.find("main [role=status]").first).to_contain_text(f"{findings.findings[0].count} of ")
    tab.page.go_back()
    first.get_by_role("link", name="task 0, repeat 1", exact=True).click()
    expect(tab.find("h1")).to_contain_text("0")
    assert tab.page.url.endswith("#/runs/0/tasks/0/1")


def test_a_comparison_lists_every_task_with_its_change(open_tab: Open, recordings: Recordings) -> None:
    tab = open_tab("#/compare/0/1?sort=task")
    runs = [read_rows(path) for path in (recordings.played, recordings.again)]
    means = [fmean(row["reward"] for row in rows if row["_ng_task_index"] == 5) for rows in runs]
    rows = tab.find("table.wide tbody tr")
    assert rows.count() == TASKS
    change = rows.nth(5).locator("td").nth(2).inner_text().replace("−", "-")
    assert abs(float(change) - (means[1] - means[0])) < 0.001


def test_compared_tasks_sort_by_change_and_open_in_one_run_and_side_by_side(open_tab: Open) -> None:
    tab = open_tab("#/compare/0/1")
    cells = tab.find("tbody tr td:nth-child(7)").all_inner_texts()
    changes = [float(text.replace("−", "-").split()[0]) for text in cells]
    assert changes == sorted(changes)
    tab.find("tbody td a").nth(1).click()
    expect(tab.find("table.wide tbody tr")).to_have_count(REPEATS)
    tab.go("#/compare/0/1")
    tab.find("tbody a").first.click()
    expect(tab.find("main h1")).to_have_text("Two rollouts side by side")


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

"""The comparison of two runs, task by task."""

from __future__ import annotations

from statistics import fmean

from playwright.sync_api import expect

from tests.external.browser.browser_tab import Open
from tests.external.browser.recordings import REPEATS, TASKS, Recordings
from tests.support.stacks import read_rows


def test_a_comparison_lists_every_task_with_its_change(open_tab: Open, recordings: Recordings) -> None:
    tab = open_tab("#/compare/0/1?sort=task")
    runs = [read_rows(path) for path in (recordings.played, recordings.again)]
    means = [fmean(row["reward"] for row in rows if row["_ng_task_index"] == 5) for rows in runs]
    rows = tab.find("table.wide tbody tr")
    assert rows.count() == TASKS
    change = rows.nth(5).locator("td").nth(2).inner_text().replace("−", "-")
    assert abs(float(change) - (means[1] - means[0])) < 0.001


def test_tasks_sort_by_change_and_open_in_one_run_and_side_by_side(open_tab: Open) -> None:
    tab = open_tab("#/compare/0/1")
    cells = tab.find("tbody tr td:nth-child(7)").all_inner_texts()
    changes = [float(text.replace("−", "-").split()[0]) for text in cells]
    assert changes == sorted(changes)
    tab.find("tbody td a").nth(1).click()
    expect(tab.find("table.wide tbody tr")).to_have_count(REPEATS)
    tab.go("#/compare/0/1")
    tab.find("tbody a").first.click()
    expect(tab.find("main h1")).to_have_text("Two rollouts side by side")

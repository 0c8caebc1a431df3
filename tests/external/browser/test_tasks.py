"""The page of a task with all its repeats, and the comparison of two runs."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from playwright.sync_api import expect

from tests.external.browser.browser_tab import Tab
from tests.external.browser.recordings import REPEATS, TASKS, Recordings
from tests.support.stacks import read_rows

Open = Callable[..., Tab]


def test_a_task_shows_all_its_repeats_and_opens_each(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/3")
    cards = tab.find(".card")
    assert cards.count() == REPEATS
    cards.nth(2).get_by_role("link").click()
    expect(tab.find("main h1")).to_have_text("Task 3 repeat 2")


def test_the_boards_of_a_task_play_in_sync(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/3")
    tab.page.keyboard.press("Home")
    starts = tab.find(".card svg.squares").evaluate_all("all => new Set(all.map((one) => one.innerHTML)).size")
    assert starts == 1


def test_the_first_and_the_last_task_have_only_one_neighbour(open_tab: Open) -> None:
    first, last = open_tab("#/runs/0/tasks/0"), open_tab(f"#/runs/0/tasks/{TASKS - 1}")
    expect(first.page.get_by_role("button", name="Previous")).to_be_disabled()
    expect(last.page.get_by_role("button", name="Next")).to_be_disabled()
    last.page.keyboard.press("]")
    last.page.keyboard.press("[")
    expect(last.find("main h1")).to_have_text(f"Task {TASKS - 2}")


def test_the_boards_of_a_pair_first_show_their_last_state(open_tab: Open) -> None:
    slider = open_tab("#/compare/0/1/tasks/3").find(".together input[type=range]")
    assert slider.input_value() == slider.get_attribute("max") != "0"


def test_a_comparison_lists_every_task_with_its_change(open_tab: Open, recordings: Recordings) -> None:
    tab = open_tab("#/compare/0/1?sort=task")
    runs = [read_rows(path) for path in (recordings.played, recordings.again)]
    means = [fmean(row["reward"] for row in rows if row["_ng_task_index"] == 5) for rows in runs]
    rows = tab.find("table.wide tbody tr")
    assert rows.count() == TASKS
    change = rows.nth(5).locator("td").nth(2).inner_text().replace("−", "-")
    assert abs(float(change) - (means[1] - means[0])) < 0.001


def test_tasks_sort_by_change_and_open_in_both_runs(open_tab: Open) -> None:
    tab = open_tab("#/compare/0/1")
    cells = tab.find("tbody tr td:nth-child(7)").all_inner_texts()
    changes = [float(text.replace("−", "-").split()[0]) for text in cells]
    assert changes == sorted(changes)
    tab.find("tbody a").first.click()
    expect(tab.find(".halves > section")).to_have_count(2)
    expect(tab.find(".halves .card")).to_have_count(2 * REPEATS)

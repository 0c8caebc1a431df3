"""The overview: the results of a run."""

from __future__ import annotations

import pytest

from tests.external.browser.browser_tab import Open
from tests.external.browser.recordings import REPEATS, TASKS, Recordings
from tests.support.stacks import read_rows


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
    assert tab.page.url.endswith("#/runs/1")

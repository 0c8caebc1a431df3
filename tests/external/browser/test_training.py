"""A training run in the viewer: curves with pointer and keyboard, the rollouts of each step, a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from rollyard.training.metrics_log import MetricsLog
from rollyard.training.run_folder import TrainingPaths
from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open, Tab
from tests.external.browser.viewer import viewing
from tests.support.rollout_files import grid
from tests.support.training_runs import training_run

STEPS = 30
KEPT = 12


@pytest.fixture(scope="module")
def training_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A viewer of a run of 30 steps, of which the last 12 have rollouts, with an evaluation after every 10."""
    folder = tmp_path_factory.mktemp("training")
    training_run(folder / "run", STEPS, grid([0, 1, 2, 4], 4), kept=KEPT)
    with viewing([folder / "run"], folder) as started:
        yield started


@pytest.fixture
def open_run(open_tab: Open, training_url: str) -> Open:
    """Opens tabs with the viewer of the run, unless `at` is another."""
    return lambda place="#/", at=training_url, **options: open_tab(place, at=at, **options)


def figure(tab: Tab, title: str) -> Locator:
    return tab.find(".figure").filter(has=tab.page.get_by_role("heading", name=title, exact=True)).first


def place(tab: Tab, chart: Locator, part: float) -> tuple[float, float]:
    """Return a position in a chart, from 0 to 1 of its width, in pixels of the window."""
    chart.scroll_into_view_if_needed()
    box = chart.locator(".area").bounding_box()
    assert box is not None
    return box["x"] + part * box["width"], box["y"] + box["height"] / 2


def test_the_pointer_shows_the_value_of_a_step_and_a_click_opens_its_rollouts(open_run: Open) -> None:
    tab = open_run()
    chart = figure(tab, "Reward")
    at = place(tab, chart, 25 / STEPS)
    tab.page.mouse.move(*at)
    expect(chart.locator(".readout")).to_contain_text("step 25: 0.")
    tab.page.mouse.click(*at)
    expect(tab.find("main h1")).to_have_text("Rollouts of step 25")
    expect(tab.find("table.wide tbody tr")).to_have_count(16)


def test_every_step_is_one_key_away_from_the_table(open_run: Open) -> None:
    tab = open_run()
    link = tab.page.get_by_role("link", name="Rollouts of step 29", exact=True)
    link.focus()
    tab.page.keyboard.press("Enter")
    expect(tab.find("main h1")).to_have_text("Rollouts of step 29")
    tab.page.keyboard.press("]")
    expect(tab.find("main h1")).to_have_text("Rollouts of step 30")
    tab.page.keyboard.press("[")
    tab.page.keyboard.press("[")
    expect(tab.find("main h1")).to_have_text("Rollouts of step 28")


def test_the_address_of_a_rollout_of_a_step_can_be_opened_again(open_run: Open) -> None:
    tab = open_run("#/runs/50/tasks/3/1")
    expect(tab.find("main h1")).to_contain_text("Task 3")
    tab.find(".trail a", has_text="step 25").click()
    expect(tab.find("main h1")).to_have_text("Rollouts of step 25")


def test_the_page_follows_a_run_through_torn_lines_and_a_resume(open_run: Open, tmp_path: Path) -> None:
    paths = training_run(tmp_path / "run", 5, every=100)
    log = MetricsLog(paths.metrics)
    with viewing([paths.root], tmp_path) as url:
        tab = open_run(at=url)
        caption = figure(tab, "Reward").locator("figcaption")
        expect(caption).to_contain_text("at step 5")
        with paths.metrics.open("ab") as file:
            file.write(b'{"step": 6, "train/rew')
        log.write(7, {"train/reward": 0.125})
        expect(caption).to_contain_text("0.125 at step 7")
        log.drop_after(3)
        log.write(4, {"train/reward": 0.25})
        expect(caption).to_contain_text("0.25 at step 4")
        tab.close()


def test_a_run_that_has_not_finished_a_step_shows_its_rollouts(open_run: Open, tmp_path: Path) -> None:
    paths = TrainingPaths(tmp_path / "run")
    paths.rollouts(1).parent.mkdir(parents=True)
    paths.rollouts(1).write_bytes(b"")
    with viewing([paths.root], tmp_path) as url:
        tab = open_run(at=url)
        expect(tab.find("main")).to_contain_text("No step has metrics yet.")
        expect(tab.page.get_by_role("link", name="Rollouts of step 1", exact=True)).to_be_visible()
        tab.close()


@pytest.mark.parametrize("address", ["#/", "#/runs/60", "#/series"])
def test_every_page_of_a_run_is_accessible_and_fits_on_a_phone(open_run: Open, address: str) -> None:
    check_accessible(open_run, address)

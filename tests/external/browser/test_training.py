"""A training run in the viewer: its curves, the rollouts of each step, engine and trainer, a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from rollyard.records.types import Json
from rollyard.training.metrics_log import MetricsLog
from rollyard.training.run_folder import TrainingPaths
from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open, figure, point
from tests.external.browser.viewer import Started, viewing
from tests.support.rollout_files import grid
from tests.support.token_rows import call_item, token_row
from tests.support.training_runs import training_run

STEPS = 30
KEPT = 12


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A viewer of a run of 30 steps, of which the last 12 have rollouts, with an evaluation after every 10."""
    folder = tmp_path_factory.mktemp("training")
    training_run(folder / "run", STEPS, grid([0, 1, 2, 4], 4), kept=KEPT)
    with viewing([folder / "run"], folder) as started:
        yield started


def test_the_pointer_shows_the_value_of_a_step_and_a_click_opens_its_rollouts(open_tab: Open) -> None:
    tab = open_tab()
    chart = figure(tab, "Reward")
    point(tab, chart, 25 / STEPS)
    expect(chart.locator(".readout")).to_contain_text("step 25: 0.")
    tab.page.mouse.down()
    tab.page.mouse.up()
    expect(tab.find("main h1")).to_have_text("Rollouts of step 25")
    expect(tab.find("table.wide tbody tr")).to_have_count(16)


def test_every_step_is_one_key_away_from_the_table(open_tab: Open) -> None:
    tab = open_tab()
    tab.page.get_by_role("link", name="Rollouts of step 29", exact=True).focus()
    for key, step in (("Enter", 29), ("]", 30), ("[", 29), ("[", 28)):
        tab.page.keyboard.press(key)
        expect(tab.find("main h1")).to_have_text(f"Rollouts of step {step}")


def test_the_address_of_a_rollout_of_a_step_can_be_opened_again(open_tab: Open) -> None:
    tab = open_tab("#/runs/50/tasks/3/1")
    expect(tab.find("main h1")).to_contain_text("Task 3")
    tab.find(".trail a", has_text="step 25").click()
    expect(tab.find("main h1")).to_have_text("Rollouts of step 25")


def test_the_page_follows_a_run_through_torn_lines_and_a_resume(
    viewer: Started, open_tab: Open, tmp_path: Path
) -> None:
    paths = training_run(tmp_path / "run", 5, every=100)
    log = MetricsLog(paths.metrics)
    caption = figure(open_tab(at=viewer(paths.root)), "Reward").locator("figcaption")
    expect(caption).to_contain_text("at step 5")
    with paths.metrics.open("ab") as file:
        file.write(b'{"step": 6, "train/rew')
    log.write(7, {"train/reward": 0.125})
    expect(caption).to_contain_text("0.125 at step 7")
    log.drop_after(3)
    log.write(4, {"train/reward": 0.25})
    expect(caption).to_contain_text("0.25 at step 4")


def test_a_run_that_has_not_finished_a_step_shows_its_rollouts(viewer: Started, open_tab: Open, tmp_path: Path) -> None:
    paths = TrainingPaths(tmp_path / "run")
    paths.rollouts(1).parent.mkdir(parents=True)
    paths.rollouts(1).write_bytes(b"")
    tab = open_tab(at=viewer(paths.root))
    expect(tab.find("main")).to_contain_text("No step has metrics yet.")
    expect(tab.page.get_by_role("link", name="Rollouts of step 1", exact=True)).to_be_visible()


def test_engine_and_trainer_are_compared_and_lead_to_the_token(viewer: Started, open_tab: Open, tmp_path: Path) -> None:
    item = call_item([" go", " up"], [-1.0, -2.0])
    paths = training_run(tmp_path / "run", 2, [token_row(0, 0, [item])])
    token: Json = {"task": 0, "repeat": 0, "entropy": 0.1, "clipped": True}
    pairs = [
        {**token, "index": 2 + place, "id": known, "engine": -1.0 - place, "trainer": -1.5 - place}
        for place, known in enumerate(item["generation_token_ids"])
    ]
    record = {"tokens": 2, "clipped": 2, "log_ratio_edges": [-0.1, 0.1], "log_ratio_counts": [2, 0, 0]}
    paths.token_pairs(2).parent.mkdir()
    paths.token_pairs(2).write_bytes(orjson.dumps({**record, "sample": pairs, "largest": pairs}))
    tab = open_tab(at=viewer(paths.root))
    tab.find("a.button", has_text="Engine and trainer").click()
    row = tab.find("section[aria-label='Largest differences'] tbody tr").nth(1)
    expect(row.locator("th")).to_have_text(" go up")
    row.locator("a").click()
    expect(tab.find(".tokentext .token.at")).to_have_text(" up")


@pytest.mark.parametrize("address", ["#/", "#/runs/60", "#/series"])
def test_every_page_of_a_run_is_accessible_and_fits_on_a_phone(open_tab: Open, address: str) -> None:
    check_accessible(open_tab, address)

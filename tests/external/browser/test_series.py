"""A series of checkpoints in the viewer, and two rollouts side by side."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import Started, exported
from tests.support.rollout_files import solved, write
from tests.support.step_rows import step_rows

STEPS = {0: {1: 0, 2: 4, 3: 1}, 25: {3: 2, 2: 2, 1: 2}, 50: {1: 4, 2: 0, 3: 3}}
SIDE_BY_SIDE = "#/side-by-side/3/0/0/3/0/1"
"""Two of the episodes, which are the last step."""


def episode(repeat: int, *turns: tuple[str, str]) -> Json:
    """A rollout with a call and its result in every turn."""
    output: list[Json] = []
    for number, (move, result) in enumerate(turns):
        call = {"call_id": f"c{number}"}
        arguments = orjson.dumps({"move": move}).decode()
        output.append({"type": "function_call", "name": "step", "arguments": arguments, **call})
        output.append({"type": "function_call_output", "output": result, **call})
    row = solved(0, repeat, repeat == 1, _ng_task_key=f"{2:016x}")
    return {**row, "response": {**row["response"], "output": output}}


def evaluations(folder: Path) -> list[Path]:
    """Three evaluations with a content key in their rows."""
    return [write(folder / f"step_{step}.jsonl", step_rows(counts)) for step, counts in STEPS.items()]


@pytest.fixture(scope="module")
def url(module_viewer: Started, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("series")
    start, wall = ("up", "the box is at 3, 4"), ("down", "<img src=x onerror=alert(1)> the wall")
    episodes = [
        episode(0, start, wall, ("left", "end")),
        episode(1, start, ("look", "nothing"), wall, ("right", "solved")),
        episode(2, ("up", "the box is at 3, 5"), wall, ("left", "end")),
    ]
    return module_viewer(*evaluations(folder), write(folder / "step_75.jsonl", episodes))


def test_a_cell_opens_the_rollouts_of_the_task_at_its_step(open_tab: Open) -> None:
    tab = open_tab("#/series?to=50")
    tab.page.get_by_role("link", name="Task 0 at step 25: 50%").click()
    expect(tab.find("main h1")).to_have_text("Rollouts of step_25")
    assert tab.page.url.endswith("?task=2")  # its index in the file of step 25


def test_arrow_keys_move_between_the_cells_of_the_heat_map(open_tab: Open) -> None:
    tab = open_tab("#/series?to=50&sort=task")
    tab.page.get_by_role("link", name="Task 0 at step 0: 0%").focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowDown")
    expect(tab.page.get_by_role("link", name="Task 1 at step 25: 50%")).to_be_focused()


def test_the_first_divergence_is_named_and_turns_after_it_are_aligned(open_tab: Open) -> None:
    tab = open_tab(SIDE_BY_SIDE)
    expect(tab.find(".divergence")).to_have_text("Same prompt. Turn 2 is only in the second rollout.")
    labels = tab.find(".row-of-two").evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))")
    assert [label.partition(": ")[2] for label in labels] == ["only in the second", "different action"]
    expect(tab.find(".compared details.same summary")).to_have_text(["Turn 1 is the same", "Turn 2 is the same"])


def test_a_rollout_leads_to_comparisons_with_its_next_repeat_and_the_same_task_in_other_files(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/0/0")
    links = tab.page.get_by_role("navigation", name="Side by side with").get_by_role("link")
    others = ["step_25 solved", "step_50 solved", "step_75 not solved"]
    expect(links).to_have_text(["next repeat (1) not solved", *others])
    links.nth(1).click()
    expect(tab.find("tbody th a").last).to_have_text("step_25, task 2, repeat 0")  # the task has another index there
    tab.go("#/runs/0/tasks/0/0")
    expect(links).to_have_count(4)
    tab.page.keyboard.press("s")
    expect(tab.find("tbody th a").last).to_have_text("step_0, task 0, repeat 1")


def test_boards_are_in_step(viewer: Started, open_tab: Open, recordings: Recordings, tmp_path: Path) -> None:
    paths = [tmp_path / path.name for path in (recordings.played, recordings.again)]
    for path in paths:
        path.symlink_to(recordings.played.with_name(path.name))
    tab = open_tab("#/side-by-side/0/3/1/1/3/1", at=viewer(*paths))
    for button, place in (("To the start", "move 0"), ("To the end", r"move (\d+) of \1$")):
        tab.page.get_by_role("button", name=button).click()
        for side in ("First", "Second"):
            board = tab.find(f".pair-of-boards svg[aria-label^='{side} board']")
            expect(board).to_have_attribute("aria-label", re.compile(place))
            expect(board).to_be_visible()


@pytest.mark.parametrize("place", ["#/series?to=50", SIDE_BY_SIDE])
def test_every_page_of_a_series_is_accessible_and_fits_on_a_phone(open_tab: Open, place: str) -> None:
    check_accessible(open_tab, place)


def test_an_export_leaves_the_series_out(open_tab: Open, tmp_path: Path) -> None:
    page = exported(evaluations(tmp_path), tmp_path / "out.html").as_uri()
    tab = open_tab("#/side-by-side/0/1/0/0/1/1", at=page)
    expect(tab.find(".divergence")).to_be_visible()
    assert tab.page.get_by_role("link", name="Series").count() == 0

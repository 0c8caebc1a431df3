"""Any field as column, filter, facet and group; named views; the verdict on rollouts, cards and in the list."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.browser_tab import Open
from tests.external.browser.viewer import Started
from tests.support.rollout_files import row, write

ROWS = "table.wide tbody tr"


def graded(task: int, repeat: int) -> Json:
    """A rollout of a task whose first repeat is solved; odd tasks are hard."""
    solved = repeat == 0
    answers: Json = {"expected_answer": f"gold {task}", "extracted_answer": f"gold {task}" if solved else None}
    parts: Json = {
        "reward_components": {"correct": float(solved), "format": 0.5},
        "level": "hard" if task % 2 else "easy",
    }
    reason = "equal" if solved else "no answer in a box"
    return row(task, repeat, float(solved), success=solved, reason=reason, **answers, **parts)


@pytest.fixture(scope="module")
def url(module_viewer: Started, tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [graded(task, repeat) for task in range(12) for repeat in range(3)]
    return module_viewer(write(tmp_path_factory.mktemp("graded") / "graded.jsonl", rows))


def test_the_list_shows_prompt_and_verdict_and_a_rollout_shows_them_on_top(open_tab: Open) -> None:
    tab = open_tab("#/runs/0?task=3")
    heads = tab.find("thead th").all_inner_texts()
    assert heads[4:9] == ["prompt", "expected answer", "extracted answer", "reason", "correct"]
    expect(tab.find(f"{ROWS}:nth-child(2) .extracted")).to_have_text("none")
    tab.find(f"{ROWS} a").first.click()
    expect(tab.find("section.verdict .expected dd")).to_have_text("gold 3")
    expect(tab.find("section.verdict .component dd").nth(1)).to_have_text("0.5")


@pytest.mark.parametrize(
    ("expected", "extracted"), [(12345678, 12345679), (3.14159, 3.14163), (2**53 + 1, 2**53), ("42", "42 "), ("", 0)]
)
def test_different_answers_never_look_the_same(
    viewer: Started, tmp_path: Path, open_tab: Open, expected: object, extracted: object
) -> None:
    rows = [row(0, 0, 0.0, expected_answer=expected, extracted_answer=extracted)]
    tab = open_tab("#/runs/0/tasks/0/0", viewer(write(tmp_path / "x.jsonl", rows)))
    shown = tab.find("section.verdict .answers dd").all_inner_texts()
    assert len(set(shown)) == len(shown)
    if not isinstance(expected, str):
        tab.go("#/runs/0")
        assert {*shown} <= {*tab.find(f"{ROWS} td").all_inner_texts()}


def test_an_expression_is_checked_while_typing_and_applied_with_enter(open_tab: Open) -> None:
    tab = open_tab("#/runs/0", new=True)
    tab.page.evaluate("() => { window.requestAnimationFrame = (draw) => setTimeout(draw, 200); }")  # a busy machine
    tab.page.keyboard.press("e")
    tab.page.keyboard.type("reward <")
    expect(tab.find("#expression-check")).to_contain_text("cannot be read at the end")
    with tab.page.expect_response(lambda answer: answer.url.endswith("hard%22")):
        tab.page.keyboard.type(' 1 and level == "hard"')
    expect(tab.find("#expression-check")).to_have_text("")
    tab.page.keyboard.press("Enter")
    expect(tab.find(ROWS)).to_have_count(12)
    tab.page.reload()
    expect(tab.find(ROWS)).to_have_count(12)


def test_a_chosen_column_is_in_the_address_and_sorts(open_tab: Open) -> None:
    tab = open_tab("#/runs/0")
    tab.find("summary", has_text="Columns").click()
    tab.page.get_by_label("level", exact=True).check()
    head = tab.find("thead button", has_text="level")
    expect(head).to_be_visible()
    assert "level" in tab.page.url
    head.click()
    expect(tab.find("thead th[aria-sort=ascending]")).to_contain_text("level")
    tab.settled()
    assert tab.find(f"{ROWS} td:last-child").all_inner_texts() == ["easy"] * 18 + ["hard"] * 18


def test_a_value_of_a_field_selects_its_rollouts(open_tab: Open) -> None:
    tab = open_tab("#/runs/0?facet=level")
    tab.find(".facet button", has_text="hard").click()
    expect(tab.find(ROWS)).to_have_count(18)
    expect(tab.page.get_by_label("Expression", exact=True)).to_have_value('level == "hard"')


def test_a_saved_view_is_opened_by_its_name(open_tab: Open) -> None:
    tab = open_tab("#/runs/0?success=true&sort=-level", new=True)
    tab.find("summary", has_text="Views").click()
    tab.page.get_by_label("Name of the view").fill("solved")
    tab.page.get_by_role("button", name="Save this view").click()
    expect(tab.find("summary", has_text="View: solved")).to_be_visible()
    tab.go("#/runs/0")
    tab.find("summary", has_text="Views").click()
    tab.page.get_by_role("button", name="solved", exact=True).click()
    expect(tab.find(ROWS)).to_have_count(12)
    assert "sort=-level" in tab.page.url

"""The conversation of a rollout is comfortable to read, and safe: Markdown, formulas, code, tokens, search, outline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open, Tab
from tests.external.browser.reading_rows import ANSWER, TURNS, drawn_messages, drawn_rows, reading_rows, searched_rows
from tests.external.browser.test_attacks import check_unharmed
from tests.external.browser.viewer import Started
from tests.support.rollout_files import write

PLACE = "#/runs/0/tasks/0/0"
_FONT = "one => getComputedStyle(one).fontFamily"
_COPIED = """all => all.map((one) => {
    getSelection().selectAllChildren(one);
    return String(getSelection()).replaceAll('\\r', '').trim();
})"""


@pytest.fixture(scope="module")
def url(module_viewer: Started, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a viewer with the rows of this module."""
    return module_viewer(write(tmp_path_factory.mktemp("reading") / "reading.jsonl", reading_rows()))


@pytest.fixture(scope="module")
def page(browser: Browser, url: str) -> Iterator[Tab]:
    """One tab for tests that leave the page as they found it."""
    tab = Tab(browser, url).go(PLACE)
    yield tab
    assert tab.problems == []
    tab.close()


def test_prompts_open_as_plain_text_and_answers_as_rendered_and_a_key_swaps_them(page: Tab) -> None:
    prompt, answer = page.find("article.user .text").last, page.find("article.answer .text").last
    expect(prompt.locator("strong")).to_have_count(0)
    expect(answer.locator("strong")).to_have_count(1)
    page.page.keyboard.press("m")
    expect(prompt.locator("strong")).to_have_text("**this**")
    expect(answer.locator("strong")).to_have_count(0)
    assert answer.text_content() == ANSWER
    page.page.keyboard.press("m")
    expect(answer.locator("strong")).to_have_count(1)
    button = page.find("article.user").last.get_by_role("button", name="Rendered")
    button.click()
    expect(prompt.locator("strong")).to_have_text("**this**")
    button.click()
    expect(prompt.locator("strong")).to_have_count(0)


@pytest.mark.parametrize("key", ["", "m"])
def test_no_character_of_500_messages_is_lost_nor_added_when_they_are_copied(
    viewer: Started, open_tab: Open, tmp_path: Path, key: str
) -> None:
    messages = drawn_messages()
    tab = open_tab(at=viewer(write(tmp_path / "x.jsonl", drawn_rows())), new=True)
    for task in range(0, len(messages), 100):
        tab.go(f"#/runs/0/tasks/{task}/0")
        if key:
            tab.page.keyboard.press(key)
        shown = tab.find("article.event .text")
        expect(shown).to_have_count(100)
        assert shown.evaluate_all("all => all.map((one) => one.textContent)") == messages[task : task + 100]
        assert shown.evaluate_all(_COPIED) == [one.replace("\r", "").strip() for one in messages[task : task + 100]]


def test_boards_in_messages_are_monospaced_and_prose_is_not(page: Tab, open_tab: Open) -> None:
    grid = page.find("article.answer .grid").last
    assert grid.inner_text() == "#####\n#.P_#\n#####"
    assert "mono" in grid.evaluate(_FONT)
    parts = open_tab("#/runs/0/tasks/2/0").find("article.user .text > span")
    shown = [(part.inner_text(), "mono" in part.evaluate(_FONT)) for part in parts.all()]
    assert shown == [("SFFF\nFHFH", True), ("\nThe board:", False), ("##_##\n#_XO#\n##P#", True), ("Next.", False)]


def test_examples_and_the_start_of_a_long_prompt_are_folded(page: Tab) -> None:
    expect(page.find("details.examples article")).to_have_count(6)
    expect(page.find("details.examples article").first).not_to_be_visible()
    question = page.find("article.user").last
    expect(question).to_contain_text("Now solve **this** one.")
    expect(question).not_to_contain_text("Line 70 of")


def test_the_outline_goes_to_a_turn(page: Tab) -> None:
    entries = page.find("nav[aria-label=Outline] button")
    expect(entries).to_have_count(TURNS + 1)
    entries.nth(3).click()
    expect(page.find("article:focus")).to_have_attribute("aria-label", "Reasoning, turn 3")
    page.page.keyboard.press("J")
    expect(page.find("article:focus")).to_have_attribute("aria-label", "Reasoning, turn 4")


def test_the_query_of_the_list_is_marked_and_n_goes_to_the_next_match(open_tab: Open) -> None:
    tab = open_tab(f"{PLACE}?q=needle")
    expect(tab.find(".findbar [role=status]")).to_have_text("4 found")
    assert tab.page.evaluate("CSS.highlights.get('find').size") == TURNS - 1
    tab.page.keyboard.press("n")
    tab.page.keyboard.press("n")
    expect(tab.find(".findbar [role=status]")).to_have_text("2 of 4")
    tab.page.keyboard.press("N")
    expect(tab.find(".findbar [role=status]")).to_have_text("1 of 4")


@pytest.mark.parametrize(
    ("place", "key", "expected"),
    [
        ("0/0?q=needle", "", "2 found"),
        ("0/0?q=needle", "p", "2 found"),
        ("1/0?q=needle", "", "300 found"),
        ('1/0?q="needle", 7', "", "not in the conversation"),
        ('1/0?q="needle"', "", "300 found"),
    ],
)
def test_all_matches_are_found_wherever_they_are(
    viewer: Started, open_tab: Open, tmp_path: Path, place: str, key: str, expected: str
) -> None:
    tab = open_tab(f"#/runs/0/tasks/{place}", viewer(write(tmp_path / "x.jsonl", searched_rows())), new=True)
    if key:
        tab.page.keyboard.press(key)
        expect(tab.find(".tokentext")).to_have_count(1)
    expect(tab.find(".findbar [role=status]")).to_have_text(expected)


def test_probabilities_are_shown_in_the_conversation(open_tab: Open) -> None:
    tab = open_tab(PLACE)
    expect(tab.find(".tokentext")).to_have_count(0)
    tab.page.keyboard.press("p")
    thought = tab.find("article.reasoning .tokentext").first
    assert "needle is *here* 🎉." in thought.inner_text()
    thought.locator(".token", has_text="needle").hover()
    readout = tab.find("article.reasoning .readout").first
    expect(readout).to_contain_text('" needle" 0.2%, log-probability −6, id 109')
    thought.locator(".token", has_text="🎉").hover()
    expect(readout).to_contain_text("3 tokens together")
    thought.focus()
    tab.page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text(re.compile("log-probability"))


def test_nothing_in_markdown_or_a_formula_can_harm_the_page(open_tab: Open) -> None:
    tab = open_tab("#/runs/0/tasks/1/0")
    tab.find("article.answer").get_by_text("Show all").click()
    answer = tab.find("article.answer")
    expect(answer).to_contain_text("\\def\\a{\\a\\a}\\a")
    assert answer.locator("a, img, script, [href], [src], [id]").count() == 0
    box = answer.bounding_box()
    assert box is not None and box["width"] <= 1280
    check_unharmed(tab)


def test_a_rollout_is_accessible_also_with_a_search_and_probabilities(open_tab: Open) -> None:
    check_accessible(open_tab, f"{PLACE}?q=needle", "p")

"""A phone of 390 or 320 pixels: nothing is wider than the screen, filters are folded, targets are large enough."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.external.browser.accessibility import PLACES
from tests.external.browser.browser_tab import Open

PHONE = {"width": 390, "height": 844}
SMALL = {"width": 320, "height": 568}

TOO_SMALL = """() => {
  const isInText = (one) => getComputedStyle(one).display === 'inline'
    && one.closest('p, .text, .tokentext, .small:not(.row), dd, figcaption, .message');
  const targets = [...document.querySelectorAll('a[href], button, summary, select, input, textarea')];
  return targets.filter((one) => one.checkVisibility() && !one.matches('.skip, :disabled') && !isInText(one))
    .filter((one) => !one.closest('svg, .tokenstrip'))
    .map((one) => [one.outerHTML.slice(0, 120), one.getBoundingClientRect()])
    .filter(([, box]) => box.width > 0 && (box.width < 23.9 || box.height < 23.9))
    .map(([text, box]) => `${Math.round(box.width)}x${Math.round(box.height)} ${text}`);
}"""


@pytest.mark.parametrize("name", PLACES)
def test_no_page_scrolls_sideways_and_every_target_is_at_least_24_pixels_wide_and_high(
    open_tab: Open, name: str
) -> None:
    tab = open_tab(PLACES[name], viewport=SMALL, has_touch=True)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= SMALL["width"]
    assert tab.page.evaluate(TOO_SMALL) == []


def test_filters_are_folded_behind_a_button_that_says_how_many_are_active(open_tab: Open) -> None:
    tab = open_tab("#/runs/0?success=true&min_reward=1&max_reward=12&sort=-reward", viewport=PHONE)
    button = tab.page.get_by_role("button", name="Filters and columns")
    expect(button).to_contain_text("3 filters active")
    expect(tab.page.get_by_label("Success")).to_be_hidden()
    button.click()
    expect(tab.page.get_by_label("Success")).to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "true")
    button.click()
    expect(tab.page.get_by_label("Success")).to_be_hidden()


def test_the_keys_of_fields_unfold_the_filters(open_tab: Open) -> None:
    for key, label in (("/", "Search in the text"), ("e", "Expression")):
        tab = open_tab("#/runs/0", viewport=PHONE)
        tab.page.keyboard.press(key)
        expect(tab.page.get_by_label(label).first).to_be_focused()


def test_filters_are_not_folded_on_a_wide_screen(open_tab: Open) -> None:
    tab = open_tab("#/runs/0")
    expect(tab.page.get_by_label("Success")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Filters and columns")).to_be_hidden()


@pytest.mark.parametrize("width", [390, 900])
def test_the_task_stays_visible_when_a_wide_table_scrolls(open_tab: Open, width: int) -> None:
    tab = open_tab("#/runs/0", viewport={"width": width, "height": 844})
    tab.page.evaluate("document.querySelector('.table').scrollLeft = 400")
    task = tab.find("table.wide tbody th").first.bounding_box()
    table = tab.find(".table").first.bounding_box()
    assert task is not None and table is not None
    assert abs(task["x"] - table["x"]) < 2
    drawn = f"document.elementFromPoint({task['x'] + 5}, {task['y'] + 8}).closest('th') !== null"
    assert tab.page.evaluate(drawn)

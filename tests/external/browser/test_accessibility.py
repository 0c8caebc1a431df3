"""axe finds nothing of level moderate or above, light or dark, wide or narrow; everything works without a mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open
from tests.external.browser.places import PLACES


@pytest.mark.parametrize("name", PLACES)
def test_every_page_is_accessible_and_fits_on_a_phone(open_tab: Open, name: str) -> None:
    check_accessible(open_tab, PLACES[name])


def test_the_theme_can_be_changed_and_persists(open_tab: Open) -> None:
    tab = open_tab("#/", color_scheme="light", new=True)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(paper)
    tab.page.keyboard.press("t")
    tab.page.keyboard.press("t")
    dark = tab.page.evaluate(paper)
    assert dark != light
    tab.page.reload()
    tab.find("main h1").wait_for()
    assert tab.page.evaluate(paper) == dark


def test_the_first_tab_stop_skips_to_the_content(open_tab: Open) -> None:
    tab = open_tab("#/runs/0", new=True)
    tab.page.keyboard.press("Tab")
    expect(tab.find("a.skip")).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.find("main")).to_be_focused()

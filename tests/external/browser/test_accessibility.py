"""axe finds no serious or critical problem, light or dark, wide or narrow; everything works without a mouse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.external.browser.browser_tab import Tab

Open = Callable[..., Tab]
PLACES = {
    "overview": "#/",
    "list": "#/runs/0",
    "rollout": "#/runs/0/tasks/0/0",
    "tokens": "#/runs/2/tasks/0/1",
    "attacks": "#/runs/4/tasks/10/0",
    "task": "#/runs/0/tasks/3",
    "compare": "#/compare/0/1",
    "pair": "#/compare/0/1/tasks/3",
    "live": "#/live",
    "nowhere": "#/nowhere",
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_tab: Open, name: str, scheme: str) -> None:
    width = 1280 if scheme == "light" else 390
    tab = open_tab(PLACES[name], color_scheme=scheme, viewport={"width": width, "height": 844}, reduced_motion="reduce")
    violations = Axe().run(tab.page).response["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in serious] == []


@pytest.mark.parametrize("name", PLACES)
def test_no_page_is_wider_than_a_phone(open_tab: Open, name: str) -> None:
    tab = open_tab(PLACES[name], viewport={"width": 390, "height": 844})
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_theme_can_be_changed_and_persists(open_tab: Open) -> None:
    tab = open_tab("#/", color_scheme="light")
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
    tab = open_tab("#/runs/0")
    tab.page.keyboard.press("Tab")
    expect(tab.find("a.skip")).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.find("main")).to_be_focused()

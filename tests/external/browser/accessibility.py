"""Checks of a page with axe, in both themes and at both widths."""

from __future__ import annotations

from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe

from tests.external.browser.browser_tab import Tab

PLACES = {
    "overview": "#/",
    "list": "#/runs/0",
    "values": "#/runs/0?facet=reward&where=reward+%3C+5",
    "findings": "#/runs/0/findings",
    "rollout": "#/runs/0/tasks/0/0",
    "tokens": "#/runs/2/tasks/0/1",
    "attacks": "#/runs/4/tasks/10/0",
    "compare": "#/compare/0/1",
    "series": "#/series",
    "side by side": "#/side-by-side/0/3/1/1/3/1",
    "live": "#/live",
    "nowhere": "#/nowhere",
}
"""The addresses of all pages, in a viewer with the files of `recordings`."""
VARIANTS = (("light", 1280), ("dark", 390))
"""Themes differ in colours, widths in the layout, so that two of the four combinations show what is wrong."""
_IS_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
_REPORTED = ("moderate", "serious", "critical")


def check_accessible(open_tab: Callable[..., Tab], place: str, *keys: str) -> None:
    """Check that axe finds nothing moderate or worse at a place, also after each of the keys, and that no page is wider
    than its window.
    """
    for scheme, width in VARIANTS:
        viewport = {"width": width, "height": 844}
        tab = open_tab(place, color_scheme=scheme, viewport=viewport, reduced_motion="reduce")
        for key in ("", *keys):
            if key:
                tab.page.keyboard.press(key)
            where = f"{place}, {scheme}, {width} pixels wide, after the key {key!r}"
            found = findings(tab)
            assert not found, f"{where}: {found}"
            assert not tab.page.evaluate(_IS_WIDE), where


def findings(tab: Tab) -> list[tuple[str, list[str]]]:
    """Return axe's findings of level moderate or above, with the elements that they concern."""
    violations = Axe().run(tab.page).response["violations"]
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]][:3])
        for one in violations
        if one["impact"] in _REPORTED
    ]

"""What rollouts hold stays text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.external.browser.attacks import ATTACKS, LOST
from tests.external.browser.browser_tab import Tab

Open = Callable[..., Tab]
RUN = 4


def unharmed(tab: Tab) -> None:
    """The page is as we made it. What it asked for and said is watched by the tab."""
    assert tab.page.title().endswith("· Rollyard")
    assert tab.find("main script, main iframe, main img, main style, main link, main meta").count() == 0
    foreign = "links => links.map((a) => a.getAttribute('href')).filter((href) => !/^(#|api\\/)/.test(href))"
    assert tab.page.locator("a").evaluate_all(foreign) == []
    inline = "all => all.flatMap((one) => one.getAttributeNames()).filter((name) => name.startsWith('on'))"
    assert tab.page.locator("*").evaluate_all(inline) == []
    assert tab.page.evaluate("({}).polluted") is None


@pytest.mark.parametrize("number", range(len(ATTACKS) + 1))
def test_no_rollout_gets_out_of_its_text(open_tab: Open, number: int) -> None:
    tab = open_tab(f"#/runs/{RUN}/tasks/{number}/0")
    tab.find("details.raw > summary").click()
    tab.find(".tree").wait_for()
    for _ in range(3):
        tab.find(".tree details:not([open]) > summary").evaluate_all("all => all.forEach((one) => one.click())")
    unharmed(tab)


@pytest.mark.parametrize("place", ["#/", f"#/runs/{RUN}", f"#/runs/{RUN}/tasks/1", f"#/compare/0/{RUN}"])
def test_no_page_over_them_is_harmed(open_tab: Open, place: str) -> None:
    unharmed(open_tab(place))


@pytest.mark.parametrize(
    "place",
    [
        "#/runs/<img src=x onerror=alert(1)>",
        "#/runs/0?q=<script>alert(1)</script>&end=</option><script>alert(1)</script>",
        "#/runs/0/tasks/__proto__/constructor",
        "#/constructor",
        "#javascript:alert(1)",
        "#/compare/0/1?sort=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&start=-5",
    ],
)
def test_no_address_is_an_attack(open_tab: Open, place: str) -> None:
    tab = open_tab(place)
    tab.wrong[:] = [one for one in tab.wrong if "status of 422" not in one]  # refused by the server: that is right
    unharmed(tab)


def test_a_rollout_that_was_given_up_says_its_attempts_harmlessly(open_tab: Open) -> None:
    tab = open_tab(f"#/runs/{RUN}?outcome=failed")
    tab.find("table.wide tbody a").click()
    attempts = tab.find(".attempts li")
    expect(attempts).to_have_count(3)
    for attempt, text in zip(attempts.all(), ATTACKS, strict=False):
        assert text in attempt.inner_text()
    assert f"/tasks/{LOST}/0" in tab.page.url
    unharmed(tab)


def test_what_cannot_be_seen_is_shown_by_its_code(open_tab: Open) -> None:
    words = open_tab(f"#/runs/{RUN}/tasks/10/0").find("article.user").inner_text()
    for code in ("\\u202e", "\\u2066", "\\u200b", "\\ufeff", "\\u0000", "\\u001b"):
        assert code in words
    assert "\\u{e0049}" in open_tab(f"#/runs/{RUN}/tasks/11/0").find("article.user").inner_text()

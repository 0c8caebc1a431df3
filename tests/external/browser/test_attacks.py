"""Content of rollouts is always shown as text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.external.browser.attacks import ATTACKS, LOST
from tests.external.browser.browser_tab import Open, Tab

RUN = 4


def check_unharmed(tab: Tab) -> None:
    """Check that nothing was injected into the page; the tab records its requests and messages."""
    assert tab.page.title().endswith("· Rollyard")
    assert tab.find("main script, main iframe, main img, main style, main link, main meta").count() == 0
    foreign = "links => links.map((a) => a.getAttribute('href')).filter((href) => !/^(#|api\\/)/.test(href))"
    assert tab.page.locator("a").evaluate_all(foreign) == []
    inline = "all => all.flatMap((one) => one.getAttributeNames()).filter((name) => name.startsWith('on'))"
    assert tab.page.locator("*").evaluate_all(inline) == []
    assert tab.page.evaluate("({}).polluted") is None


@pytest.mark.parametrize("number", range(len(ATTACKS) + 1))
def test_a_rollout_cannot_inject_anything(open_tab: Open, number: int) -> None:
    tab = open_tab(f"#/runs/{RUN}/tasks/{number}/0")
    tab.find("details.raw > summary").click()
    tab.find(".raw .text").wait_for()
    check_unharmed(tab)


@pytest.mark.parametrize("place", ["#/", f"#/runs/{RUN}", f"#/runs/{RUN}?task=1", f"#/compare/0/{RUN}"])
def test_no_page_with_attacks_is_harmed(open_tab: Open, place: str) -> None:
    check_unharmed(open_tab(place))


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
def test_an_address_cannot_inject_anything(open_tab: Open, place: str) -> None:
    tab = open_tab(place, new=True)
    refused = [problem for problem in tab.problems if "status of 422" in problem]
    tab.problems[:] = [problem for problem in tab.problems if problem not in refused]
    check_unharmed(tab)


def test_the_attempts_of_an_abandoned_rollout_are_shown_as_text(open_tab: Open) -> None:
    tab = open_tab(f"#/runs/{RUN}?outcome=failed")
    tab.find("table.wide tbody a").click()
    attempts = tab.find(".attempts li")
    expect(attempts).to_have_count(3)
    for attempt, text in zip(attempts.all(), ATTACKS, strict=False):
        assert text in attempt.inner_text()
    assert f"/tasks/{LOST}/0" in tab.page.url
    check_unharmed(tab)


def test_invisible_characters_are_shown_as_escapes(open_tab: Open) -> None:
    codes = {10: ("\\u202e", "\\u2066", "\\u200b", "\\ufeff", "\\u0000", "\\u001b"), 11: ("\\u{e0049}",)}
    for task, expected in codes.items():
        text = open_tab(f"#/runs/{RUN}/tasks/{task}/0").find("article.user").inner_text()
        assert all(code in text for code in expected)

"""The findings page leads from a sentence to the rollouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from rollyard.analysis.findings.find import findings_of
from rollyard.analysis.metrics.load import load
from rollyard.records.search_path import INSTALLED
from tests.external.browser.browser_tab import Open
from tests.external.browser.viewer import viewing

HUNT = INSTALLED / "examples" / "hunt" / "recorded"


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a viewer with the recordings of examples/hunt."""
    with viewing([HUNT / "late.jsonl", HUNT / "early.jsonl"], tmp_path_factory.mktemp("hunt")) as url:
        yield url


def test_the_first_card_names_the_exploit_with_the_figures_of_the_report(open_tab: Open, hunt: str) -> None:
    tab = open_tab("#/runs/0/findings", at=hunt)
    findings = findings_of(load(HUNT / "late.jsonl"))
    assert findings is not None
    first = tab.find(".finding").first
    expect(first.locator("h2")).to_have_text("1 Rewarded for listing many answers")
    expect(first).to_contain_text(findings.findings[0].sentence)


def test_an_example_is_one_click_away(open_tab: Open, hunt: str) -> None:
    tab = open_tab("#/runs/0/findings", at=hunt)
    tab.find(".finding").first.get_by_role("link", name="task 0, repeat 1", exact=True).click()
    expect(tab.find("h1")).to_contain_text("0")
    assert tab.page.url.endswith("#/runs/0/tasks/0/1")

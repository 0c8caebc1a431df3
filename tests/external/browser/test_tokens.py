"""Tokens as text: the least likely of a rollout, a token in the address."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import Open
from tests.external.browser.viewer import Started
from tests.support.rollout_files import write
from tests.support.token_rows import alternatives, call_item, logprobs_item, token_row

ATTACK = "</script><img src=x onerror=alert(1)>\u202e"
PLACE = "#/runs/0/tasks/99/0"


@pytest.fixture(scope="module")
def url(module_viewer: Started, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A viewer of a rollout that has an odd token, alternatives and an attack."""
    odd = call_item([" sure", " odd", " now"], [-0.1, -12.0, -0.2])
    attacked = logprobs_item([alternatives(" chosen", 0.001), alternatives(ATTACK, 0.5)])
    return module_viewer(write(tmp_path_factory.mktemp("tokens") / "x.jsonl", [token_row(99, 0, [odd, attacked])]))


def test_the_least_likely_tokens_of_a_rollout_lead_to_their_place(open_tab: Open) -> None:
    tab = open_tab(PLACE)
    rows = tab.find("section.worst tbody tr")
    expect(rows.first).to_contain_text("sure odd now")
    expect(rows.first.locator("td").nth(1)).to_have_text("−12")
    expect(rows.nth(1)).to_contain_text("other")  # the alternative to ` chosen`
    rows.first.locator("button").click()
    expect(tab.find(".tokentext .token.at")).to_have_text(" odd")
    expect(tab.find("article.answer .readout").first).to_contain_text("log-probability −12")


def test_an_address_with_a_token_shows_it(open_tab: Open) -> None:
    tab = open_tab(f"{PLACE}?token=1.0")
    expect(tab.find(".tokentext .token.at")).to_have_text(" chosen")
    tab.page.keyboard.press("p")
    expect(tab.find(".tokentext")).to_have_count(0)


def test_a_page_with_tokens_is_accessible_and_fits_a_phone(open_tab: Open) -> None:
    check_accessible(open_tab, PLACE)

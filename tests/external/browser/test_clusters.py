"""The pages of clusters lead from a kind of failure to its rollouts, for one run and for two."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from tests.external.browser.accessibility import check_accessible
from tests.external.browser.browser_tab import COUNT, Tab
from tests.external.browser.viewer import viewing
from tests.support.failing_rows import recorded
from tests.support.rollout_files import write
from tests.support.waiting import eventually

Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a viewer with two runs: loops and give-ups, then only give-ups."""
    folder: Path = tmp_path_factory.mktemp("failures")
    first = write(folder / "first.jsonl", recorded(["loop", "give-up"], tasks=20, repeats=4))
    second = write(folder / "second.jsonl", recorded(["give-up"], tasks=20, repeats=4, seed=1))
    with viewing([first, second], folder) as url:
        for path in ("runs/0/clusters", "clusters/0/1"):
            eventually("the clusters", partial(is_clustered, f"{url}api/{path}"))
        yield url


def is_clustered(address: str) -> bool:
    """Return whether the clusters are complete. The request waits for a moment on the server."""
    with urllib.request.urlopen(address) as response:
        done: float = orjson.loads(response.read())["done"]
    return done >= 1


def clusters(open_tab: Open, url: str, place: str = "#/runs/0/clusters", **options: object) -> Tab:
    """A tab that shows clusters."""
    tab = open_tab(place, at=url, **options)
    expect(tab.find(".cluster")).to_have_count(2)
    return tab


def test_a_card_leads_to_the_list_of_its_rollouts(open_tab: Open, failures: str) -> None:
    tab = clusters(open_tab, failures)
    card = tab.find(".cluster").filter(has_text="loop: same call, same result")
    button = card.get_by_role("link", name="rollouts")
    count = button.inner_text().split()[1]
    button.click()
    expect(tab.find(COUNT)).to_contain_text(f"{count} of 80 rollouts")
    expect(tab.find("main tbody tr")).to_have_count(int(count))


def test_the_filter_of_the_list_can_be_removed(open_tab: Open, failures: str) -> None:
    tab = clusters(open_tab, failures)
    tab.find(".cluster").first.get_by_role("link", name="rollouts").click()
    tab.page.get_by_role("button", name="Remove").click()
    expect(tab.find(COUNT)).to_have_text("80 rollouts")


def test_a_typical_rollout_is_one_click_away(open_tab: Open, failures: str) -> None:
    tab = clusters(open_tab, failures)
    tab.find(".cluster").filter(has_text="no tool call").locator("a").first.click()
    expect(tab.find("main .conversation")).to_be_visible()


def test_two_runs_show_what_went_away(open_tab: Open, failures: str) -> None:
    tab = clusters(open_tab, failures, "#/clusters/0/1")
    gone = tab.find(".cluster").filter(has_text="loop: same call, same result")
    expect(gone.locator(".badge")).to_have_text("gone")
    gone.locator("tbody a").first.click()
    expect(tab.find(COUNT)).to_contain_text("of 80 rollouts")


def test_an_expression_selects_what_counts_as_failed(open_tab: Open, failures: str) -> None:
    tab = clusters(open_tab, failures)
    field = tab.page.get_by_label("Rollouts that count as failed")
    field.fill('end == "max_steps"')
    field.press("Enter")
    expect(tab.find(".cluster")).to_have_count(1)


def test_the_key_opens_the_clusters(open_tab: Open, failures: str) -> None:
    tab = open_tab("#/", at=failures)
    tab.find("main h1").wait_for()
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("c")
    expect(tab.find("main h1")).to_contain_text("Clusters of failures in first")


@pytest.mark.parametrize("place", ["#/runs/0/clusters", "#/clusters/0/1"])
def test_the_pages_are_accessible_and_fit_on_a_phone(open_tab: Open, failures: str, place: str) -> None:
    check_accessible(lambda *where, **options: clusters(open_tab, failures, *where, **options), place)

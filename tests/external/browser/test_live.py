"""The live page of a run, and the overview of a growing file."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.external.browser.browser_tab import Open
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import running_stack, viewing


def test_without_a_run_a_message_says_so(open_tab: Open) -> None:
    expect(open_tab("#/live").find("main .message")).to_contain_text("no running stack found")


def test_the_servers_of_a_run_are_listed(open_tab: Open, recordings: Recordings, tmp_path: Path) -> None:
    with running_stack(tmp_path), viewing([recordings.played], tmp_path) as url:
        tab = open_tab("#/live", at=url)
        expect(tab.find("section[aria-label=Servers] tbody tr")).to_have_count(3)
        expect(tab.find("section[aria-label=Servers]").get_by_text("ready")).to_have_count(3)
        tab.close()


def test_an_invalid_address_of_an_episode_does_not_break_the_page(open_tab: Open) -> None:
    tab = open_tab("#/live/%zz/b")
    expect(tab.find("h1")).to_contain_text("Episode")
    tab.page.goto(f"{tab.page.url.partition('#')[0]}#/runs/0")
    expect(tab.find("h1")).to_contain_text("Rollouts")

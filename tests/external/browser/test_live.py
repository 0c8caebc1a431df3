"""The live page of a run, an episode that is followed while it is played, and failed attempts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.browser_tab import Open, point
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import Started, running_stack
from tests.support.commands import BIN, command_environ
from tests.support.stacks import AGENT, PUZZLES, read_rows
from tests.support.waiting import deadline_s, eventually

SLOW = "policy_model.responses_api_models.builtin_model.latency_s=6"
STARTED = [f"+agent_name={AGENT}", f"+input_jsonl_fpath={PUZZLES}", "+limit=4", "+num_repeats=1"]


def test_without_a_run_a_message_says_so(open_tab: Open) -> None:
    expect(open_tab("#/live").find("main .message")).to_contain_text("no running stack found")


def test_the_servers_and_the_pace_of_a_run_are_shown(
    viewer: Started, open_tab: Open, recordings: Recordings, tmp_path: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(recordings.played.read_bytes())
    with running_stack(tmp_path):
        tab = open_tab("#/live", at=viewer(path))
        servers = tab.find("section[aria-label=Servers]")
        expect(servers.locator("tbody tr")).to_have_count(3)
        expect(servers.get_by_text("ready")).to_have_count(3)
        pace = tab.find("section[aria-label=Pace]")
        expect(pace.locator("svg.chart")).to_have_count(2)
        point(tab, pace.locator(".figure").first, 1.0)
        expect(pace.locator(".readout").first).to_contain_text("now: ")
        tab.close()


def test_an_invalid_address_of_an_episode_does_not_break_the_page(open_tab: Open) -> None:
    tab = open_tab("#/live/%zz/b")
    expect(tab.find("h1")).to_contain_text("Episode")
    tab.page.goto(f"{tab.page.url.partition('#')[0]}#/runs/0")
    expect(tab.find("h1")).to_contain_text("Rollouts")


def test_an_episode_is_followed_to_its_finished_rollout(viewer: Started, open_tab: Open, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    command = [str(BIN / "ng_collect_rollouts"), *STARTED, f"+output_jsonl_fpath={output}"]
    with running_stack(tmp_path, SLOW):
        collecting = subprocess.Popen(command, cwd=tmp_path, env=command_environ(), stdout=subprocess.DEVNULL)
        eventually("the output exists", output.exists)
        tab = open_tab("#/live", at=viewer(output))
        tab.find("section[aria-label='Active rollouts'] tbody a").first.click()
        expect(tab.find("section[aria-label='Conversation so far'] article").nth(2)).to_be_visible()
        tab.find("main a.button", "The finished rollout").click()
        expect(tab.find("main h1")).to_contain_text("Task")
        tab.close()
        assert collecting.wait(deadline_s()) == 0


def failed_attempt(row: Json) -> Json:
    """A failed attempt at the rollout of `row`, which got as far as its first four items."""
    said = {key: value for key, value in row.items() if key not in ("reward", "success", "moves")}
    said["response"] = {"output": row["response"]["output"][:4]}
    partial = {"source": "agent", "stage": "model", "server": "policy_model", "stage_s": 7.5, "turn": 3, "row": said}
    keys = {key: row[key] for key in ("_ng_task_index", "_ng_rollout_index", "agent_ref")}
    what = {"failure_kind": "upstream_error", "server": "policy_model", "detail": "the engine <b>died</b>"}
    when = {"_ng_attempt_index": 0, "terminal": False, "time": 1e9, "duration_s": 9.0}
    return {**keys, **what, **when, "status": 502, "partial": partial}


@pytest.fixture
def mended(recordings: Recordings, tmp_path: Path) -> Path:
    """A run whose first rollout needed two attempts."""
    path = tmp_path / "mended.jsonl"
    path.write_bytes(b"".join(recordings.played.read_bytes().splitlines(keepends=True)[:4]))
    failed = orjson.dumps(failed_attempt(read_rows(path)[0]))
    path.with_name("mended_failures.jsonl").write_bytes(failed + b"\n")
    return path


def test_a_list_and_a_rollout_lead_to_what_was_said_in_a_failed_attempt_and_the_place_of_the_failure(
    viewer: Started, open_tab: Open, mended: Path
) -> None:
    tab = open_tab("#/", at=viewer(mended))
    tab.find("main a.button", "Failed attempts").click()
    tab.find("main tbody a").first.click()
    end = tab.find("section[aria-label='Conversation until the failure'] article").last
    for text in ("Failed here", "7.5 s for policy_model to answer model call 3", "the engine <b>died</b>"):
        expect(end).to_contain_text(text)
    expect(tab.find("aside.stage .screen").first).to_be_visible()
    tab.page.get_by_role("link", name="The rollout").click()
    tab.find("section[aria-label='Failed attempts'] a").click()
    expect(end).to_contain_text("Failed here")

"""Failed attempts with what was said until then, and an episode that is followed while it is played."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import expect

from rollyard.records.types import Json
from tests.external.browser.browser_tab import Open
from tests.external.browser.recordings import Recordings
from tests.external.browser.viewer import running_stack, viewing
from tests.support.commands import BIN, command_environ
from tests.support.stacks import AGENT, PUZZLES
from tests.support.waiting import deadline_s, eventually

SLOW = "policy_model.responses_api_models.builtin_model.latency_s=6"


def failed_attempt(row: Json, items: int) -> Json:
    """A failed attempt at the rollout of `row`, which got as far as its first `items` items."""
    keys = {key: row[key] for key in ("_ng_task_index", "_ng_rollout_index", "agent_ref")}
    said = {**row, "response": {"output": row["response"]["output"][:items]}}
    fields = {key: value for key, value in said.items() if key not in ("reward", "success", "moves")}
    partial = {"source": "agent", "stage": "model", "server": "policy_model", "stage_s": 7.5, "turn": 3, "row": fields}
    what = {
        "failure_kind": "upstream_error",
        "server": "policy_model",
        "status": 502,
        "detail": "the engine <b>died</b>",
    }
    return {
        **keys,
        "_ng_attempt_index": 0,
        **what,
        "terminal": False,
        "time": 1e9,
        "duration_s": 9.0,
        "partial": partial,
    }


@pytest.fixture(scope="module")
def recorded(recordings: Recordings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first rollout needed two attempts."""
    path = tmp_path_factory.mktemp("failed") / "mended.jsonl"
    lines = recordings.played.read_bytes().splitlines(keepends=True)[:4]
    path.write_bytes(b"".join(lines))
    row = orjson.loads(lines[0])
    path.with_name("mended_failures.jsonl").write_bytes(orjson.dumps(failed_attempt(row, 4)) + b"\n")
    return path


@pytest.fixture(scope="module")
def shown(recorded: Path) -> Iterator[str]:
    with viewing([recorded], recorded.parent) as url:
        yield url


def test_the_list_of_failed_attempts_leads_to_the_conversation_and_the_place_of_the_failure(
    open_tab: Open, shown: str
) -> None:
    tab = open_tab("#/", at=shown)
    tab.find("main a.button", "Failed attempts").click()
    tab.find("main tbody a").first.click()
    events = tab.find("section[aria-label='Conversation until the failure'] article")
    expect(events.last).to_contain_text("Failed here")
    expect(events.last).to_contain_text("Waited for 7.5 s for policy_model to answer model call 3.")
    expect(events.last).to_contain_text("the engine <b>died</b>")
    expect(tab.find("aside.stage .screen").first).to_be_visible()


def test_a_rollout_opens_its_failed_attempt_in_place(open_tab: Open, shown: str, recorded: Path) -> None:
    row = orjson.loads(recorded.read_bytes().split(b"\n")[0])
    tab = open_tab(f"#/runs/0/tasks/{row['_ng_task_index']}/{row['_ng_rollout_index']}", at=shown)
    section = tab.find("section[aria-label='Failed attempts']")
    section.locator("summary", has_text="What was said until then").click()
    expect(section.locator("article.failure")).to_be_visible()


def test_an_episode_is_followed_to_its_finished_rollout(open_tab: Open, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    command = [
        str(BIN / "ng_collect_rollouts"),
        f"+agent_name={AGENT}",
        f"+input_jsonl_fpath={PUZZLES}",
        f"+output_jsonl_fpath={output}",
        "+limit=4",
        "+num_repeats=1",
    ]
    with running_stack(tmp_path, SLOW):
        collecting = subprocess.Popen(command, cwd=tmp_path, env=command_environ(), stdout=subprocess.DEVNULL)
        eventually("the output exists", output.exists)
        with viewing([output], tmp_path) as url:
            tab = open_tab("#/live", at=url)
            tab.find("section[aria-label='Active rollouts'] tbody a").first.click()
            articles = tab.find("section[aria-label='Conversation so far'] article")
            expect(articles.nth(2)).to_be_visible()
            tab.find("main a.button", "The finished rollout").click()
            expect(tab.find("main h1")).to_contain_text("Task")
            tab.close()
        assert collecting.wait(deadline_s()) == 0

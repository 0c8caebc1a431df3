"""What remains of an episode whose agent is killed, and of one whose policy hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import orjson

from rollyard.analysis.viewer.live import EpisodeTails, TailView
from rollyard.cli.viewer import FoundRun
from rollyard.records.run_types import HeadFile
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.services.runtime.stack import Stack
from tests.support.stacks import AGENT, PUZZLES, collect, load_config, processes
from tests.support.waiting import deadline_s, short_s

from .harness import failures, ready_pid

SLOW = "policy_model.responses_api_models.builtin_model.latency_s=1"
HANGS = "policy_model.responses_api_models.builtin_model.faults.hang_rate=1"
EXACT = {"temperature": 0.0}
"""The policy then plays the shortest solution, which takes about nine turns."""
ONCE = CollectionLimits(parallel=1, max_attempts=1, first_pause_s=0.01, longest_pause_s=0.05, max_failure_rate=1.0)


def longest_puzzle(folder: Path) -> Path:
    """A file with the puzzle that takes the most turns."""
    rows = [orjson.loads(line) for line in PUZZLES.read_bytes().splitlines()]
    path = folder / "longest.jsonl"
    path.write_bytes(orjson.dumps(max(rows, key=lambda row: row["optimal_moves"])) + b"\n")
    return path


def tails_of(stack: Stack) -> EpisodeTails:
    async def find() -> HeadFile:
        return HeadFile(run_id=stack.keys.run_id, url=stack.head_url, pid=0)

    return EpisodeTails(FoundRun(stack.client.transport, find), lambda row: None)


async def in_flight(stack: Stack) -> str | None:
    """The id of the episode that has reached its third turn."""
    url = stack.registry.directory().servers[AGENT][0]
    answer = await stack.client.transport.send("GET", f"{url}/episodes", b"", {}, deadline_s())
    return next((one["episode"] for one in orjson.loads(answer.body)["episodes"] if one["turn"] >= 3), None)


async def far_enough(stack: Stack) -> str:
    async with asyncio.timeout(deadline_s()):
        while (episode := await in_flight(stack)) is None:
            await asyncio.sleep(0.02)
    return episode


async def test_after_kill_9_of_the_agent_the_conversation_comes_from_the_model_server_and_the_tail_keeps_its_last_state(
    tmp_path: Path,
) -> None:
    async with processes(load_config(SLOW), tmp_path) as stack:
        output, rows = tmp_path / "rollouts.jsonl", longest_puzzle(tmp_path)
        collecting = asyncio.create_task(collect(stack, output, rows=rows, repeats=1, limits=ONCE, params=EXACT))
        episode, tails = await far_enough(stack), tails_of(stack)
        before = await tails.view(AGENT, episode, -1)
        pid = ready_pid(stack, AGENT)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await collecting
        view = await _until_not_playing(tails, episode)
    [row] = failures(output)
    assert row["failure_kind"] == "connection_lost"
    partial = row["partial"]
    assert (partial["source"], partial["server"]) == ("model_server", "policy_model")
    said = [item["type"] for item in partial["row"]["response"]["output"]]
    assert said[:2] == ["function_call", "function_call_output"]
    assert partial["row"]["seed"] == orjson.loads(rows.read_bytes())["seed"]
    assert before.state == "playing" and before.events
    assert view.state in ("lost", "ended") and view.events and len(view.events) >= len(before.events)


async def test_an_attempt_at_a_policy_that_hangs_records_the_prompt(tmp_path: Path) -> None:
    limits = CollectionLimits(**{**vars(ONCE), "rollout_timeout_s": 2 * short_s()})
    async with processes(load_config(HANGS), tmp_path) as stack:
        await collect(stack, tmp_path / "rollouts.jsonl", rows=PUZZLES, limit=1, repeats=1, limits=limits)
    [row] = failures(tmp_path / "rollouts.jsonl")
    partial = row["partial"]
    assert (row["failure_kind"], partial["stage"], partial["server"]) == ("timeout", "model", "policy_model")
    assert partial["row"]["responses_create_params"]["input"] and partial["turn"] == 1


async def _until_not_playing(tails: EpisodeTails, episode: str) -> TailView:
    async with asyncio.timeout(deadline_s()):
        while (view := await tails.view(AGENT, episode, -1)).state == "playing":
            await asyncio.sleep(0.05)
    return view

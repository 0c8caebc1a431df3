"""The rows of failed attempts contain what had been said until then, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.activity import EPISODE_ID_HEADER, RECORD_HEADER, PartialConversation
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import RolloutStore
from tests.integration.agents.test_agents import ROW, counting
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says
from tests.support.waiting import short_s

FAST = CollectionLimits(parallel=1, max_attempts=1, first_pause_s=0.01, longest_pause_s=0.01, max_failure_rate=1.0)


async def collect(
    stack: InProcessServers, tmp_path: Path, limits: CollectionLimits = FAST, row: Json = ROW
) -> list[Json]:
    """Collect one rollout and return the rows of the failures file."""
    rows, output = tmp_path / "rows.jsonl", tmp_path / "rollouts.jsonl"
    rows.write_bytes(orjson.dumps(row) + b"\n")
    paths = RolloutPaths(output)
    store = RolloutStore(paths, {}, {}, resume=True, overwrite=False)
    tasks = TaskFile(rows, agent="agent", limit=None)
    try:
        await Collector(tasks.rollouts(1), {}, stack.client, store, CollectionProgress(1), limits).run()
    finally:
        store.close()
    return [orjson.loads(line) for line in paths.failures.read_bytes().splitlines()]


def kinds_of(partial: Json) -> list[str]:
    return [item["type"] for item in partial["row"]["response"]["output"]]


CALLED = ["function_call", "function_call_output"]
BROKEN: Sequence[tuple[Any, str, str, list[str]]] = [
    ([[calls("add", {}, "a")], [calls("explode", {}, "b")]], "server_error", "tool", [*CALLED, "function_call"]),
    ([[calls("add", {}, "a")]], "bad_request", "model", CALLED),
]


@pytest.mark.parametrize(("turns", "kind", "stage", "items"), BROKEN)
async def test_what_had_been_said_is_recorded_with_the_failure(
    tmp_path: Path, turns: Any, kind: str, stage: str, items: list[str]
) -> None:
    async with counting(Script(turns, repeat=False)) as stack:
        [row] = await collect(stack, tmp_path)
    partial = row["partial"]
    assert (row["failure_kind"], partial["stage"], partial["turn"]) == (kind, stage, 2)
    assert kinds_of(partial) == items
    assert partial["row"]["responses_create_params"]["input"] == [{"role": "user", "content": "Play."}]
    assert partial["row"]["level"] == 3 and partial["omitted"] is None
    assert [name for name, _ in partial["timings"]] == ["seed", "model", "tool", "model"][: len(partial["timings"])]


async def test_a_bug_in_the_agent_is_recorded_with_the_conversation(tmp_path: Path) -> None:
    class Buggy(GameAgent):
        async def play(self, episode: Any) -> Any:
            await episode.ask()
            raise ValueError("a bug")

    async with counting(Script([[says("hm")]]), Buggy) as stack:
        [row] = await collect(stack, tmp_path)
    assert row["detail"] == "ValueError: a bug (traceback in the log of agent)"
    assert kinds_of(row["partial"]) == ["message"]


async def test_a_rejected_verdict_is_recorded_with_the_whole_conversation(tmp_path: Path) -> None:
    async with counting(Script([[says("hm")]])) as stack:
        [row] = await collect(stack, tmp_path, row={**ROW, "nan": True})
    assert (row["failure_kind"], row["partial"]["stage"]) == ("malformed_answer", "verify")
    assert kinds_of(row["partial"]) == ["message"] and "reward" not in row


class Hanging(Environment[EnvironmentSettings]):
    """Its tool never returns."""

    @tool
    async def wait(self) -> str:
        """Waits for ever."""
        await asyncio.Event().wait()
        return ""

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


async def test_an_attempt_beyond_its_deadline_is_recorded_with_its_conversation(tmp_path: Path) -> None:
    script = Script([[says("I wait."), calls("wait", {}, "a")]])
    async with episode_servers(Hanging, script, GameAgent) as stack:
        limits = CollectionLimits(**{**vars(FAST), "rollout_timeout_s": short_s()})
        [row] = await collect(stack, tmp_path, limits)
    assert (row["failure_kind"], row["partial"]["stage"]) == ("timeout", "tool")
    assert kinds_of(row["partial"]) == ["message", "function_call"]


async def test_a_conversation_above_the_limit_is_shortened_and_says_so(tmp_path: Path) -> None:
    script = Script([[says("long " * 20_000), calls("add", {}, "a")], [calls("explode", {}, "b")]])
    async with counting(script) as stack:
        [row] = await collect(stack, tmp_path, CollectionLimits(**{**vars(FAST), "partial_bytes": 8000}))
    assert len(orjson.dumps(row["partial"])) <= 8000
    assert row["partial"]["omitted"]["texts"] == 1


async def test_a_caller_that_does_not_ask_gets_the_same_error_as_before() -> None:
    async with counting(Script([[calls("explode", {})]])) as stack:
        before = orjson.loads((await stack.post("agent", "/run", ROW)).body)
        asked = {RECORD_HEADER: "8000", EPISODE_ID_HEADER: "0" * 32}
        with_partial = orjson.loads((await stack.post("agent", "/run", ROW, asked)).body)
    partial = with_partial.pop("partial")
    assert before == with_partial
    assert PartialConversation.model_validate(partial).source == "agent"


async def test_the_same_failure_is_retried_the_same_way_with_and_without_a_conversation(tmp_path: Path) -> None:
    found = []
    for limit in (0, 100_000):
        (folder := tmp_path / str(limit)).mkdir()
        async with counting(Script([[calls("explode", {})]])) as stack:
            limits = CollectionLimits(**{**vars(FAST), "max_attempts": 3, "partial_bytes": limit})
            rows = await collect(stack, folder, limits)
        assert all(("partial" in row) == bool(limit) for row in rows)
        found.append([(row["failure_kind"], row["terminal"], row["_ng_attempt_index"]) for row in rows])
    assert found[0] == found[1] and len(found[0]) == 3


@pytest.mark.parametrize("attempts", [1, 3])
async def test_only_the_last_attempt_that_is_allowed_abandons_the_rollout(tmp_path: Path, attempts: int) -> None:
    async with counting(Script([[calls("explode", {})]])) as stack:
        rows = await collect(stack, tmp_path, CollectionLimits(**{**vars(FAST), "max_attempts": attempts}))
        again = await collect(stack, tmp_path, FAST)
    assert [(row["terminal"], row["abandoned"]) for row in rows] == [(False, False)] * (attempts - 1) + [(False, True)]
    assert [row["abandoned"] for row in again[attempts:]] == [True]


async def test_an_agent_that_returns_nonsense_as_conversation_does_no_harm(tmp_path: Path) -> None:
    class Lying(GameAgent):
        async def play(self, episode: Any) -> Any:
            raise Failure(FailureKind.TIMEOUT, "late", server="elsewhere")

    async with counting(Script([[says("hm")]]), Lying) as stack:
        send = stack.transport.send

        async def send_nonsense(method: str, url: str, body: bytes, *rest: Any) -> Any:
            answer = await send(method, url, body, *rest)
            if url.endswith("/run"):
                problem = {**orjson.loads(answer.body), "partial": {"reward": 1.0}}
                return answer._replace(body=orjson.dumps(problem))
            return answer

        stack.transport.send = send_nonsense
        [row] = await collect(stack, tmp_path)
    assert row["failure_kind"] == "timeout" and "partial" not in row

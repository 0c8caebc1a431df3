"""A lost response leaks no session, and no malformed tool call of a model fails its rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from rollyard.agents.episode import MAX_ARGUMENTS
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says
from tests.support.waiting import short_s, until

ROW: Json = {"responses_create_params": {"input": "Go."}}


class Slow(Environment[EnvironmentSettings]):
    """Its seed takes as long as the test needs."""

    seeding = 0
    closed = 0
    go = asyncio.Event()
    model_may = asyncio.Event()

    async def seed(self) -> list[Json]:
        Slow.seeding += 1
        if self.task.get("slow"):
            await Slow.go.wait()
        return []

    @tool
    async def echo(self, value: Any = None) -> Any:
        """Returns its argument."""
        return value

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)

    async def close(self) -> None:
        Slow.closed += 1


@pytest.fixture(autouse=True)
def reset_counters() -> None:
    Slow.seeding = Slow.closed = 0
    Slow.go = asyncio.Event()


def playing(script: Script, **settings: Any) -> Any:
    return episode_servers(Slow, script, SimpleAgent, **settings)


def lose_response(stack: InProcessServers, path: str, kind: FailureKind) -> list[str]:
    """From now on the environment handles the next request to `path`, but its response is lost."""
    send, lost = stack.transport.send, list[str]()

    async def send_and_lose(method: str, url: str, *rest: Any) -> Any:
        answer = await send(method, url, *rest)
        if url == f"http://environment:1{path}" and not lost:
            lost.append(url)
            raise Failure(kind, "the response was lost")
        return answer

    stack.transport.send = send_and_lose  # type: ignore[method-assign, assignment]
    return lost


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/seed_session", FailureKind.CONNECTION_LOST),
        ("/seed_session", FailureKind.TIMEOUT),
        ("/verify", FailureKind.TIMEOUT),
        ("/echo", FailureKind.CONNECTION_LOST),
        ("/close", FailureKind.TIMEOUT),
    ],
)
async def test_a_lost_response_leaks_no_session(path: str, kind: FailureKind) -> None:
    script = Script([[calls("echo", {"value": 1})], [calls("echo", "{")], [says("done")]])
    async with playing(script) as stack:
        if path == "/close":
            lose_response(stack, "/verify", kind)
        lost = lose_response(stack, path, kind)
        with pytest.raises(Failure):
            await stack.run(ROW)
        assert lost
        await until(lambda: stack.servers["environment"].sessions == 0 and Slow.closed == 1)


async def test_an_agent_cancelled_while_it_seeds_closes_the_session_by_its_name() -> None:
    async with playing(Script([[says("done")]])) as stack:
        running = asyncio.create_task(stack.run({**ROW, "slow": True}))
        await until(lambda: Slow.seeding == 1)
        running.cancel()
        await until(lambda: stack.servers["environment"].sessions == 0 and Slow.closed == 1)


async def test_a_seed_that_exceeds_the_agents_timeout_leaks_no_session() -> None:
    async with playing(Script([[says("done")]]), tool_timeout_s=short_s()) as stack:
        with pytest.raises(Failure, match="timeout"):
            await stack.run({**ROW, "slow": True})
        await until(lambda: stack.servers["environment"].sessions == 0 and Slow.closed == 1)


NESTED = ["[" * depth + "]" * depth for depth in (400, 5000)]
MALFORMED_VALUES = ["NaN", "1e999", '"\\ud800"', *NESTED, f'"{"x" * MAX_ARGUMENTS}"']
RESERVED = ("step", "health", "tools", "openapi.json", "aggregate_metrics", "")
NO_NAMES = ("Close", "VERIFY", "..", ".", "v1/responses", "%2e%2e", "close ", "a\nb", "é", "x" * 500)
MALFORMED_CALLS = [
    *(calls("echo", f'{{"value": {value}}}') for value in MALFORMED_VALUES),
    *(calls("echo", arguments) for arguments in ("[1]", "null", '{"response": {}}', "\x00")),
    *(calls(name, {}) for name in NO_NAMES),
    *(calls(name, {"response": {}}) for name in RESERVED),
    {**calls("echo", {}), "name": None},
    {**calls("echo", {}), "name": {"a": 1}},
    {**calls("echo", {}), "arguments": ["a"]},
]


async def test_a_malformed_tool_call_never_fails_the_rollout() -> None:
    script = Script([turn for call in MALFORMED_CALLS for turn in ([call], [says("I see")])])
    async with playing(script) as stack:
        for call in MALFORMED_CALLS:
            rollout = await stack.run(ROW)
            output = rollout["response"]["output"][1]["output"]
            assert (rollout["reward"], list(orjson.loads(output))) == (1.0, ["error"]), str(call)[:200]
            assert len(output) < 2500


async def test_a_call_without_a_usable_id_gets_one() -> None:
    ids: list[Any] = [None, "", 7, {"a": 1}]
    call = calls("echo", {"value": 1})
    script = Script([turn for call_id in ids for turn in ([{**call, "call_id": call_id}], [says("I see")])])
    async with playing(script) as stack:
        for number in range(len(ids)):
            rollout = await stack.run(ROW)
            made, answer = rollout["response"]["output"][:2]
            assert isinstance(made["call_id"], str) and made["call_id"] == answer["call_id"]
            sent = script.requests[2 * number + 1]["input"][1:]
            assert [item["call_id"] for item in sent] == [made["call_id"]] * 2

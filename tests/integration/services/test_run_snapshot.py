"""What a snapshot of a running run contains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import orjson
import pytest
from fastapi import FastAPI

from rollyard.analysis.viewer.live import live_router
from rollyard.cli.viewer import FoundRun
from rollyard.records.activity import Collection, RunningEpisode, RunningEpisodes, StageActivity
from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.run_types import HeadFile
from rollyard.services.head.registry_client import (
    AgentActivity,
    RegistryClient,
    RunSnapshot,
    fetch_activity,
    fetch_snapshot,
)
from rollyard.services.http.client import ServerClient
from rollyard.services.http.transport import HttpTransport
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.runtime.stack import Stack
from tests.support.failed_attempts import failure_row
from tests.support.stacks import AGENT, EXAMPLES, colocated, load_config
from tests.support.waiting import deadline_s

SLOW = "policy_model.responses_api_models.builtin_model.latency_s=30"


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with colocated(load_config(SLOW), tmp_path_factory.mktemp("stack")) as stack:
        yield stack


def head_of(stack: Stack) -> HeadFile:
    return HeadFile(run_id=stack.keys.run_id, url=stack.head_url, pid=0)


async def snapshot(stack: Stack) -> RunSnapshot:
    return await fetch_snapshot(stack.client.transport, head_of(stack))


async def play(client: ServerClient, repeat: int) -> None:
    row = orjson.loads(EXAMPLES.read_bytes().split(b"\n")[0])
    row |= {"_ng_task_index": 4, "_ng_rollout_index": repeat}
    await client.post(AGENT, "/run", orjson.dumps(row), deadline_s())


async def test_running_rollouts_are_listed_with_task_repeat_stage_and_turn(stack: Stack) -> None:
    playing = [asyncio.create_task(play(stack.client, repeat)) for repeat in range(3)]
    try:
        async with asyncio.timeout(deadline_s()):
            while not (live := await snapshot(stack)).stages or live.stages[0].stage != "model" or live.total < 3:
                await asyncio.sleep(0.01)
        assert [(stage.stage, stage.server, stage.episodes) for stage in live.stages] == [("model", "policy_model", 3)]
        assert {(one.task, one.repeat, one.turn) for one in live.episodes} == {(4, 0, 1), (4, 1, 1), (4, 2, 1)}
        assert live.stuck == [] and len(live.servers) == 3
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def test_collections_and_their_failures_are_listed(stack: Stack) -> None:
    link = RegistryClient(stack.client.transport, stack.head_url, stack.keys)
    for name, times in (("/a.jsonl", (1.0, 3.0)), ("/b.jsonl", (2.0,))):
        failures = [failure_row(time=time) for time in times]
        await link.report_collection(
            Collection(output=name, status=CollectionProgress(5).status("running"), failures=failures)
        )
    live = await snapshot(stack)
    assert [one.output for one in live.collections] == ["/b.jsonl", "/a.jsonl"]
    assert [row.time for row in live.failures] == [1.0, 2.0, 3.0]


async def test_of_several_collectors_only_the_failures_are_listed(stack: Stack) -> None:
    link = RegistryClient(stack.client.transport, stack.head_url, stack.keys)
    status = CollectionProgress(5).status("running")
    for number in range(20):
        part = Collection(
            output=f"/c.shard-{number}.jsonl", status=status, failures=[failure_row(time=10 + number)], is_part=True
        )
        await link.report_collection(part)
        await link.report_collection(Collection(output="/c.jsonl", status=status, failures=[]))
    live = await snapshot(stack)
    assert [one.output for one in live.collections if one.output.startswith("/c")] == ["/c.jsonl"]
    assert {10 + number for number in range(20)} <= {row.time for row in live.failures}


async def test_an_unresponsive_agent_is_named_and_the_others_are_shown(stack: Stack) -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    good = next(one for one in (await snapshot(stack)).servers if one.server_type == "agents")
    bad = good.model_copy(update={"process_name": "unresponsive#1", "url": f"http://127.0.0.1:{port}"})
    activity = await fetch_activity(stack.client.transport, [bad, good], {}, 10, deadline_s=2.0)
    listener.close()
    assert list(activity.unresponsive) == ["unresponsive#1"]
    assert "2 s" in activity.unresponsive["unresponsive#1"]
    assert [answer.agent for answer in activity.responses] == [AGENT]


def test_the_stages_of_several_agents_are_merged() -> None:
    def answer(agent: str, stage_s: float, median_s: float | None, stuck: int) -> RunningEpisodes:
        where = {"agent": agent, "episode": agent, "task": None, "repeat": None, "stage": "model", "server": "policy"}
        episode = RunningEpisode.model_validate({**where, "turn": 1, "age_s": 9.0, "stage_s": stage_s})
        stage = StageActivity(
            stage="model", server="policy", episodes=2, median_s=median_s, stuck=stuck, slowest=episode
        )
        return RunningEpisodes(agent=agent, total=2, stages=[stage], episodes=[episode])

    activity = AgentActivity([answer("a", 5.0, 0.5, 1), answer("b", 7.0, None, 0)])
    (stage,) = activity.stages()
    assert (stage.episodes, stage.stuck, stage.median_s, stage.slowest.agent) == (4, 1, 0.5, "b")
    assert activity.total == 4


def page(find: Callable[[], Awaitable[HeadFile]], transport: HttpTransport) -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(live_router(FoundRun(transport, find), lambda row: None))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://viewer")


async def test_ten_concurrent_pages_cost_one_snapshot(stack: Stack) -> None:
    found: list[HeadFile] = []

    async def find() -> HeadFile:
        found.append(head_of(stack))
        return found[-1]

    transport = HttpTransport()
    async with page(find, transport) as client:
        responses = await asyncio.gather(*(client.get("/api/live") for _ in range(10)))
        assert len(found) == 1
        assert {RunSnapshot.model_validate_json(answer.content).run_id for answer in responses} == {stack.keys.run_id}
        async with asyncio.timeout(deadline_s()):
            while len(found) == 1:
                await client.get("/api/live")
                await asyncio.sleep(0.05)
    await transport.close()


async def test_without_a_run_the_page_gets_a_note() -> None:
    async def find() -> HeadFile:
        raise RunError("no running stack")

    transport = HttpTransport()
    async with page(find, transport) as client:
        live = RunSnapshot.model_validate_json((await client.get("/api/live")).content)
    assert (live.run_id, live.servers, live.note) == ("", [], "no running stack")
    await transport.close()


async def test_in_a_run_with_a_token_the_agents_answer_callers_that_have_it(tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path, token="open-sesame") as stack:
        allowed = head_of(stack).model_copy(update={"token": "open-sesame"})
        live = await fetch_snapshot(stack.client.transport, allowed)
        with pytest.raises(Failure) as caught:
            await fetch_snapshot(stack.client.transport, head_of(stack))
    assert live.stuck == [] and len(live.servers) == 3
    assert caught.value.kind is FailureKind.UNAUTHORIZED

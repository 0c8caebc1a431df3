"""An episode can be followed while it is played, and what it says appears in the viewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from fastapi import FastAPI

from rollyard.agents.game_agent.app import GameAgent
from rollyard.analysis.viewer.live import EpisodeTails, TailView
from rollyard.cli.viewer import FoundRun
from rollyard.records.activity import EPISODE_ID_HEADER
from rollyard.records.run_types import HeadFile, ServerInstance
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import Transport
from tests.support.in_process import KEYS, InProcessServers, Script, agent, calls, environment, in_process_servers, says
from tests.support.waiting import deadline_s, until

ROW: Json = {"responses_create_params": {"input": "Play."}, "_ng_task_index": 4, "_ng_rollout_index": 1}
EPISODE = "a" * 32


class Gated(Environment[EnvironmentSettings]):
    gate = asyncio.Event()

    @tool
    async def step(self) -> str:
        await Gated.gate.wait()
        return "moved"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


@pytest.fixture
async def stack() -> AsyncIterator[InProcessServers]:
    Gated.gate = asyncio.Event()
    script = Script([[says("I move."), calls("step", {}, "a")], [says("Done.")]])
    servers = {"environment": environment(Gated), "model": script.model, "agent": agent(GameAgent)}
    async with in_process_servers(servers) as started:
        yield started


class Head:
    """The part of a head that tails use, in front of the servers of a test."""

    def __init__(self, stack: InProcessServers, **agent_fields: Any) -> None:
        self.instances = [instance(**agent_fields)]
        self.sent: list[str] = []
        self.is_agent_gone = False
        self._transport = stack.transport
        app = FastAPI()
        app.get("/server_instances")(lambda: self.instances)
        stack.transport.mount("http://head:1", app)

    async def send(self, method: str, url: str, *rest: Any, **more: Any) -> HttpResponse:
        self.sent.append(url)
        if self.is_agent_gone and url.startswith("http://agent:1"):
            url = url.replace("agent:1", "nobody:1")
        return await self._transport.send(method, url, *rest, **more)

    async def find(self) -> HeadFile:
        return HeadFile(run_id=KEYS.run_id, url="http://head:1", pid=0)


def instance(**fields: Any) -> ServerInstance:
    given: Json = {
        "process_name": "agent",
        "server_type": "agents",
        "name": "game_agent",
        "server_name": "agent",
        "dir_path": "",
        "entrypoint": "",
        "host": None,
        "port": None,
        "pid": None,
        "config_path": "",
        "url": "http://agent:1",
        "status": "success",
        "start_time": 0.0,
        "uptime_seconds": 0.0,
        "ready": True,
        "requests": 0,
        "in_flight": 0,
        "sessions": 0,
        "restarts": 0,
    }
    return ServerInstance(**{**given, **fields})


def tails_of(head: Head) -> EpisodeTails:
    transport: Transport = head  # type: ignore[assignment]
    return EpisodeTails(FoundRun(transport, head.find), lambda row: None)


async def playing(stack: InProcessServers) -> asyncio.Task[HttpResponse]:
    task = asyncio.create_task(stack.post("agent", "/run", ROW, {EPISODE_ID_HEADER: EPISODE}))
    await until(lambda: stages(stack) == ["tool"])
    return task


def stages(stack: InProcessServers) -> list[str]:
    server: Any = stack.servers["agent"]
    return [state.stage for state in server._Agent__active_episodes._states]


async def asked_until(tails: EpisodeTails, condition: Callable[[TailView], bool]) -> TailView:
    async with asyncio.timeout(deadline_s()):
        while not condition(view := await tails.view("agent", EPISODE, -1)):
            await asyncio.sleep(0.05)
    return view


async def test_what_was_said_is_shown_while_the_tool_still_runs(stack: InProcessServers) -> None:
    task = await playing(stack)
    view = await tails_of(Head(stack)).view("agent", EPISODE, -1)
    assert view.events is not None
    assert [(event.speaker, event.turn) for event in view.events] == [("user", 0), ("answer", 1), ("call", 1)]
    assert (view.state, view.stage, view.server, view.task, view.repeat) == ("playing", "tool", "environment", 4, 1)
    Gated.gate.set()
    await task


async def test_a_known_conversation_is_not_sent_again(stack: InProcessServers) -> None:
    task, tails = await playing(stack), tails_of(Head(stack))
    revision = (await tails.view("agent", EPISODE, -1)).revision
    assert (await tails.view("agent", EPISODE, revision)).events is None
    Gated.gate.set()
    await task


async def test_an_episode_that_has_ended_keeps_its_last_state(stack: InProcessServers) -> None:
    task, tails = await playing(stack), tails_of(Head(stack))
    await tails.view("agent", EPISODE, -1)
    Gated.gate.set()
    await task
    view = await asked_until(tails, lambda view: view.state != "playing")
    assert view.state == "ended" and view.events and view.events[1].text == "I move."


async def test_an_agent_that_is_gone_leaves_its_last_state(stack: InProcessServers) -> None:
    task, head = await playing(stack), Head(stack)
    tails = tails_of(head)
    await tails.view("agent", EPISODE, -1)
    head.is_agent_gone = True
    view = await asked_until(tails, lambda view: view.state != "playing")
    assert view.state == "lost" and view.events and view.events[1].text == "I move."
    head.is_agent_gone = False
    assert (await asked_until(tails, lambda view: view.state == "playing")).task == 4
    Gated.gate.set()
    await task


async def test_an_agent_of_another_framework_is_not_asked_and_the_page_says_why(stack: InProcessServers) -> None:
    head = Head(stack, origin="http://elsewhere:1")
    view = await tails_of(head).view("agent", EPISODE, -1)
    assert view.state == "unknown" and "another framework" in view.note
    assert not [url for url in head.sent if "/episodes/" in url]


async def test_with_a_run_token_an_agent_tells_only_those_who_have_it(stack: InProcessServers) -> None:
    task = await playing(stack)
    server: Any = stack.servers["agent"]
    server._Server__token = b"Bearer secret"
    refused = await stack.transport.send("GET", f"http://agent:1/episodes/{EPISODE}", b"", {}, 5.0)
    allowed = {"authorization": "Bearer secret"}
    given = await stack.transport.send("GET", f"http://agent:1/episodes/{EPISODE}", b"", allowed, 5.0)
    server._Server__token = None
    assert (refused.status, given.status) == (401, 200)
    assert orjson.loads(given.body)["task"] == 4
    Gated.gate.set()
    await task

"""How rollouts of a complete agent fare with a pool of real loopback endpoints of which some are bad."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure
from rollyard.records.types import Json, Verdict
from rollyard.resources_servers.base import Environment, tool
from rollyard.resources_servers.environment import EnvironmentSettings, Verification
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.server.app import Context, Server
from tests.support.in_process import episode_servers

MODEL = "policy"
TURNS = 3
LATENCY_S = 0.002
ATTEMPTS = 3
PATIENCE_S = 1.0
"""The model server's request timeout for the slow kinds. Long enough for a busy machine; each such call costs it."""
KINDS = (
    *("malformed", "truncated", "html", "empty_body", "empty_answer", "null_finish", "engine_error", "error_in_200"),
    *("500", "503", "429", "401", "404", "redirect", "reset", "hangs_up", "image"),
    *("other_model", "slow", "silent", "refuses"),
)
PATIENT = ("slow", "silent")
"""Kinds that use up the whole timeout."""

_RESET = struct.pack("ii", 1, 0)


class LookEnvironment(Environment[EnvironmentSettings]):
    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        self.calls = 0

    @tool
    async def look(self) -> str:
        """Look around."""
        self.calls += 1
        return "nothing"

    async def verify(self, response: Verification) -> Verdict:
        """1.0 for a complete episode."""
        return Verdict(reward=float(self.calls == TURNS - 1))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a collection went."""

    rollouts: int
    measured: int
    wrong: int
    """Rollouts with another reward than a healthy pool gives."""
    calls: int
    calls_to_bad: int

    @property
    def share(self) -> float:
        return self.calls_to_bad / max(self.calls, 1)


class FakeEndpoint:
    """An engine that answers an episode of `TURNS` turns until it turns bad."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        self.bad = False
        self.calls = 0
        self.calls_while_bad = 0
        self.url = ""
        self.on_call: Callable[[], None] = lambda: None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def turn_bad(self) -> None:
        self.bad = bool(self.kind)
        if self.kind == "refuses":
            self.stop()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._answer(reader, writer):
                    await writer.drain()
        except asyncio.CancelledError:
            pass  # the event loop shuts down
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns False if the connection is to be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        request = orjson.loads(await reader.readexactly(length))
        self.calls += 1
        self.on_call()
        self.calls_while_bad += self.bad
        if not self.bad:
            await asyncio.sleep(LATENCY_S)
            writer.write(_http(_completion(request)))
            return True
        return await self._misbehave(request, writer)

    async def _misbehave(self, request: Json, writer: asyncio.StreamWriter) -> bool:
        if self.kind in ("silent", "slow"):
            await asyncio.sleep(3600 if self.kind == "silent" else 3 * PATIENCE_S)
            writer.write(_http(_completion(request)))
            return True
        if self.kind == "hangs_up":
            return False
        whole = _http(_completion(request))
        if self.kind == "truncated":
            writer.write(whole[:-20])
            return False
        if self.kind == "reset":
            writer.write(whole[: len(whole) // 2])
            await writer.drain()
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
            return False
        writer.write(_wrong(self.kind, request))
        return True


def _wrong(kind: str, request: Json) -> bytes:
    if kind.isdigit():
        return _http(orjson.dumps({"error": {"message": f"status {kind}"}}), f"{kind} X")
    broken: dict[str, Json] = {
        "empty_answer": {"choices": [{"message": {}}]},
        "null_finish": {"choices": [{"message": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        "engine_error": {"choices": [{"message": {"content": "a"}, "finish_reason": "engine_error"}]},
        "error_in_200": {"error": {"message": "no engine", "code": 500}},
    }
    answers = {
        "malformed": _http(b'{"choices": [{"mess'),
        "html": _http(b"<html><body>Welcome to nginx!</body></html>", content_type="text/html"),
        "empty_body": _http(b""),
        "redirect": _http(b"", "302 Found", more="location: http://127.0.0.1:1/\r\n"),
        "image": _http(b"\x89PNG\r\n\x1a\n\x00\x00", content_type="image/png"),
        "other_model": _http(_completion(request, model="another")),
    }
    return answers[kind] if kind in answers else _http(orjson.dumps(broken[kind]))


def _http(body: bytes, status: str = "200 OK", content_type: str = "application/json", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def _completion(request: Json, model: str = "") -> bytes:
    """The next turn: a tool call, or a text after the last tool call."""
    calls_made = sum(message["role"] == "tool" for message in request["messages"])
    message: Json = {"role": "assistant", "content": "done" if calls_made >= TURNS - 1 else None}
    if calls_made < TURNS - 1:
        call = {"id": f"call_{calls_made}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        message["tool_calls"] = [call]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls_made < TURNS - 1 else "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model or request["model"]}
    return orjson.dumps({**head, "choices": [choice], "usage": usage})


@contextlib.asynccontextmanager
async def pool(kinds: Sequence[str]) -> AsyncIterator[list[FakeEndpoint]]:
    """Start endpoints of these kinds, all still healthy."""
    endpoints = [FakeEndpoint(kind) for kind in kinds]
    for endpoint in endpoints:
        await endpoint.start()
    try:
        yield endpoints
    finally:
        for endpoint in endpoints:
            endpoint.stop()


async def play(
    kind: str, *, bad: int = 1, midway: bool = False, rollouts: int = 200, parallel: int = 32, endpoints: int = 10
) -> Outcome:
    """Run rollouts over a pool with `bad` bad endpoints; with `midway` they turn bad after a third of the rollouts."""
    async with pool([kind] * bad + [""] * (endpoints - bad)) as fakes:
        settings = VllmModelSettings(
            base_url=[fake.url for fake in fakes],
            model=MODEL,
            request_timeout_s=PATIENCE_S if kind in PATIENT else 30.0,
            retry_pause_s=0.05,
        )

        def policy(context: Context) -> Server:
            return VllmModel(settings, context)

        def turn_bad() -> None:
            for fake in fakes:
                fake.turn_bad()

        def on_call() -> None:
            # In the middle of episodes, which are not all at the same turn.
            if midway and sum(fake.calls for fake in fakes) == rollouts * TURNS // 3 + parallel // 2:
                turn_bad()

        if not midway:
            turn_bad()
        for fake in fakes:
            fake.on_call = on_call
        async with episode_servers(LookEnvironment, policy, SimpleAgent) as stack:
            rewards: list[float] = []
            tasks = iter(range(rollouts))

            async def work() -> None:
                for task in tasks:
                    row = {"responses_create_params": {"input": "look"}, "_ng_task_index": task}
                    for _ in range(ATTEMPTS):
                        try:
                            rewards.append((await stack.run(row))["reward"])
                            break
                        except Failure as failure:
                            if failure.terminal:
                                break

            await asyncio.gather(*(work() for _ in range(parallel)))
        return Outcome(
            rollouts=rollouts,
            measured=len(rewards),
            wrong=sum(reward != 1.0 for reward in rewards),
            calls=sum(fake.calls for fake in fakes),
            calls_to_bad=sum(fake.calls_while_bad for fake in fakes),
        )

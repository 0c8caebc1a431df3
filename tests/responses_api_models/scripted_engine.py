"""A real HTTP endpoint on a free loopback port that answers what the test scripted, and the servers in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn

from services.client import AddressBook, ServerClient
from services.server import Context, Server
from services.transport import Answer, HttpTransport, LocalTransport
from services.types import Directory, Json, Keys

COMPLETION: Json = {
    "id": "chatcmpl-7",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "engine-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}


def completion(message: Json, finish_reason: str = "stop", **more: Any) -> Json:
    """A chat completion with this message."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {**COMPLETION, "choices": [choice], **more}


@dataclass
class Step:
    """One answer of the script."""

    body: bytes | Json = field(default_factory=lambda: COMPLETION)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False
    """Break the connection in the middle of the body."""


class Engine:
    """Answers the script's steps in order, the last one again and again; remembers what it was asked."""

    def __init__(self, *steps: Step | Json) -> None:
        self.steps = [step if isinstance(step, Step) else Step(step) for step in steps or (Step(),)]
        self.asked: list[Json] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.hung_up = asyncio.Event()
        self.at_once = 0
        self.most_at_once = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(headers["content-length"]))
                step = self.steps[min(len(self.asked), len(self.steps) - 1)]
                self.paths.append(head[0].split(" ")[1])
                self.headers.append(headers)
                self.asked.append(orjson.loads(body))
                if step.delay_s and await self._gone(reader, step.delay_s):
                    break
                answer = step.body if isinstance(step.body, bytes) else orjson.dumps(step.body)
                lines = [f"{name}: {value}\r\n" for name, value in step.headers.items()]
                head_out = f"HTTP/1.1 {step.status} X\r\ncontent-length: {len(answer)}\r\n{''.join(lines)}\r\n"
                writer.write(head_out.encode() + (answer[: len(answer) // 2] if step.cut else answer))
                await writer.drain()
                if step.cut:
                    break
        writer.close()

    async def _gone(self, reader: asyncio.StreamReader, delay_s: float) -> bool:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            async with asyncio.timeout(delay_s):
                await reader.read(1)
        except TimeoutError:
            return False
        finally:
            self.at_once -= 1
        self.hung_up.set()
        return True


@contextlib.asynccontextmanager
async def engine(*steps: Step | Json) -> AsyncIterator[Engine]:
    """The engine, listening."""
    scripted = Engine(*steps)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield scripted
    finally:
        server.close()


def refusing_url() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        return f"http://127.0.0.1:{held.getsockname()[1]}/v1"


@contextlib.asynccontextmanager
async def http_transport() -> AsyncIterator[HttpTransport]:
    """A transport that is closed at the end."""
    transport = HttpTransport()
    try:
        yield transport
    finally:
        await transport.close()


@contextlib.asynccontextmanager
async def model_server(kind: type[Server], **settings: Any) -> AsyncIterator[Server]:
    """A model server with these settings; `ask` and `listening` reach it."""
    async with http_transport() as transport:
        keys = Keys(run_id="run-1", secret="secret")
        parsed = kind.Settings(**{"model": "engine-model", "retry_pause_s": 0.01, **settings})
        client = ServerClient(transport, keys, AddressBook(_nobody))
        yield kind(parsed, Context("policy_model", keys, client))


async def _nobody() -> Directory:
    return Directory(run_id="run-1", servers={}, families={}, settings={})


async def ask(server: Server, path: str, request: Json) -> tuple[Answer, Json]:
    """POST straight into the app; the answer and its body as JSON (empty when it is none)."""
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    headers = {"content-type": "application/json"}
    answer = await local.send("POST", f"http://policy{path}", orjson.dumps(request), headers, 30.0)
    is_json = "json" in answer.headers["content-type"]
    return answer, orjson.loads(answer.body) if is_json else {}


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield  # signals are pytest's


@contextlib.asynccontextmanager
async def listening(server: Server) -> AsyncIterator[str]:
    """The server behind a real uvicorn on a free port; its base URL."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        config = uvicorn.Config(server, log_level="error", ws="none", lifespan="off", loop="none")
        running = _Quiet(config)
        task = asyncio.create_task(running.serve([held]))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"
        running.should_exit = True
        await task

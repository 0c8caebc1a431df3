"""A real HTTP endpoint on a free loopback port with scripted responses, and model servers in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn

from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import ASGIApp, HttpResponse
from rollyard.services.http.transport import LocalTransport
from rollyard.services.responses.stream_events import whole
from rollyard.services.server.app import Context, Server
from tests.support.fixtures import http_transport

COMPLETION: Json = {
    "id": "chatcmpl-7",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "engine-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}


def completion(message: Json, finish_reason: str = "stop", **more: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {**COMPLETION, "choices": [choice], **more}


@dataclass
class Step:
    """One response of the script."""

    body: bytes | Json = field(default_factory=lambda: COMPLETION)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False
    """Break the connection in the middle of the body."""
    events: tuple[Json | bytes, ...] | None = None
    """Sent one by one instead of `body`; each is the data of a server-sent event, or raw bytes."""
    hold: asyncio.Event | None = None
    """The stream waits for it after the first event."""


def chunks(*deltas: Json, finish_reason: str = "stop", usage: Json | None = None) -> tuple[Json | bytes, ...]:
    """The events of a chat stream with these deltas."""
    head = {**COMPLETION, "object": "chat.completion.chunk"}
    head.pop("usage")
    middle = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}
    usage_chunk = {**head, "choices": [], "usage": usage or COMPLETION["usage"]}
    return (
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        *middle,
        last,
        usage_chunk,
        DONE,
    )


DONE = b"data: [DONE]\n\n"


def response_events(text: str) -> tuple[bytes, ...]:
    """The events of an endpoint's Responses stream whose message is `text`."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "odd": {"deep": 1}}
    return tuple(block + b"\n\n" for block in whole(response).split(b"\n\n") if block)


class Engine:
    """Sends the script's responses in order, then repeats the last one; records the requests."""

    def __init__(self, *steps: Step | Json) -> None:
        self.steps = [step if isinstance(step, Step) else Step(step) for step in steps or (Step(),)]
        self.requests: list[Json] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.reached = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.concurrent = 0
        self.max_concurrent = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
                body = await reader.readexactly(int(headers["content-length"]))
                step = self.steps[min(len(self.requests), len(self.steps) - 1)]
                self.paths.append(head[0].split(" ")[1])
                self.headers.append(headers)
                self.requests.append(orjson.loads(body))
                self.reached.set()
                if step.delay_s and await self._disconnected_within(reader, step.delay_s):
                    break
                if step.events is not None:
                    if not await self._stream(step, step.events, reader, writer):
                        break
                    continue
                answer = step.body if isinstance(step.body, bytes) else orjson.dumps(step.body)
                lines = [f"{name}: {value}\r\n" for name, value in step.headers.items()]
                head_out = f"HTTP/1.1 {step.status} X\r\ncontent-length: {len(answer)}\r\n{''.join(lines)}\r\n"
                writer.write(head_out.encode() + (answer[: len(answer) // 2] if step.cut else answer))
                await writer.drain()
                if step.cut:
                    break
        writer.close()

    async def _stream(
        self, step: Step, events: tuple[Json | bytes, ...], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send the events. Returns True if the connection may be reused."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in step.headers.items())
        head = f"HTTP/1.1 {step.status} X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        writer.write(f"{head}{lines}\r\n".encode())
        for number, event in enumerate(events):
            if number == 1 and step.hold is not None and await self._disconnected_before(reader, step.hold):
                return False
            data = event if isinstance(event, bytes) else b"data: %b\n\n" % orjson.dumps(event)
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        if not step.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return not step.cut

    async def _disconnected_before(self, reader: asyncio.StreamReader, hold: asyncio.Event) -> bool:
        gone, held = asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(hold.wait())
        await asyncio.wait({gone, held}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, held):
            task.cancel()
        await asyncio.wait({gone, held})  # a StreamReader allows one reader at a time
        if hold.is_set():
            return False
        self.disconnected.set()
        return True

    async def _disconnected_within(self, reader: asyncio.StreamReader, delay_s: float) -> bool:
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            async with asyncio.timeout(delay_s):
                await reader.read(1)
        except TimeoutError:
            return False
        finally:
            self.concurrent -= 1
        self.disconnected.set()
        return True


@contextlib.asynccontextmanager
async def engine(*steps: Step | Json) -> AsyncIterator[Engine]:
    scripted = Engine(*steps)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield scripted
    finally:
        server.close()


@contextlib.asynccontextmanager
async def model_server(kind: type[Server], **settings: Any) -> AsyncIterator[Server]:
    """A model server with these settings and the run's `token`; reach it with `post_json` or `listening`."""
    async with http_transport() as transport:
        keys = Keys(run_id="run-1", secret="secret", token=settings.pop("token", None))
        defaults = {"model": "engine-model", "retry_pause_s": 0.01}
        known = {name: value for name, value in defaults.items() if name in kind.Settings.model_fields}
        parsed = kind.Settings(**{**known, **settings})
        client = ServerClient(transport, keys, AddressBook(empty_directory))
        yield kind(parsed, Context("policy_model", keys, client))


async def empty_directory() -> Directory:
    """The directory of a run without servers."""
    return Directory(run_id="run-1", servers={}, families={}, settings={})


async def post_json(server: Server, path: str, request: Json) -> tuple[HttpResponse, Json]:
    """POST to the app without a socket; the response, and its body as JSON ({} if it is not JSON)."""
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    headers = {"content-type": "application/json"}
    answer = await local.send("POST", f"http://policy{path}", orjson.dumps(request), headers, 30.0)
    is_json = "json" in answer.headers["content-type"]
    return answer, orjson.loads(answer.body) if is_json else {}


@contextlib.asynccontextmanager
async def listening(server: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serve with a real uvicorn on `port`, or on a free one, and yield the base URL."""
    # Only if the protocol is given does asyncio set TCP_NODELAY, without which each response takes 40 ms longer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        config = uvicorn.Config(server, log_level="error", ws="none", lifespan="off", loop="none")
        config.load()
        # uvicorn's `serve` would take over pytest's signal handlers and need 0.1 s to notice that it is to stop.
        running = uvicorn.Server(config)
        running.lifespan = config.lifespan_class(config)
        await running.startup([held])
        try:
            yield f"http://127.0.0.1:{held.getsockname()[1]}"
        finally:
            running.force_exit = True
            await running.shutdown([held])

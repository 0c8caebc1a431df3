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

from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import ASGIApp, HttpResponse, HttpTransport, LocalTransport
from rollyard.services.responses.stream_events import whole
from rollyard.services.run_types import Directory, Keys
from rollyard.services.server.app import Context, Server
from rollyard.services.types import Json

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
    events: tuple[Json | bytes, ...] | None = None
    """Sent one by one in place of `body`; each the data of a server-sent event, or bytes as they are."""
    hold: asyncio.Event | None = None
    """Waited for behind the first event."""


def chunks(*deltas: Json, finish_reason: str = "stop", usage: Json | None = None) -> tuple[Json | bytes, ...]:
    """The events of a chat stream with these deltas."""
    head = {**COMPLETION, "object": "chat.completion.chunk"}
    head.pop("usage")
    said = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    last = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}
    counted = {**head, "choices": [], "usage": usage or COMPLETION["usage"]}
    return (
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        *said,
        last,
        counted,
        DONE,
    )


DONE = b"data: [DONE]\n\n"


def response_events(text: str) -> tuple[bytes, ...]:
    """The events of an endpoint's Responses stream that says `text`."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "odd": {"deep": 1}}
    return tuple(block + b"\n\n" for block in whole(response).split(b"\n\n") if block)


class Engine:
    """Answers the script's steps in order, the last one again and again; remembers what it was asked."""

    def __init__(self, *steps: Step | Json) -> None:
        self.steps = [step if isinstance(step, Step) else Step(step) for step in steps or (Step(),)]
        self.asked: list[Json] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.reached = asyncio.Event()
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
                self.reached.set()
                if step.delay_s and await self._gone(reader, step.delay_s):
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
        """Send the events; True when the connection may be used again."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in step.headers.items())
        head = f"HTTP/1.1 {step.status} X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
        writer.write(f"{head}{lines}\r\n".encode())
        for number, event in enumerate(events):
            if number == 1 and step.hold is not None and await self._hung_up(reader, step.hold):
                return False
            data = event if isinstance(event, bytes) else b"data: %b\n\n" % orjson.dumps(event)
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        if not step.cut:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return not step.cut

    async def _hung_up(self, reader: asyncio.StreamReader, hold: asyncio.Event) -> bool:
        gone, held = asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(hold.wait())
        await asyncio.wait({gone, held}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, held):
            task.cancel()
        await asyncio.wait({gone, held})  # the reader serves one at a time
        if hold.is_set():
            return False
        self.hung_up.set()
        return True

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
    """A model server with these settings and the run's `token`; `ask` and `listening` reach it."""
    async with http_transport() as transport:
        keys = Keys(run_id="run-1", secret="secret", token=settings.pop("token", None))
        usual = {"model": "engine-model", "retry_pause_s": 0.01}
        known = {name: value for name, value in usual.items() if name in kind.Settings.model_fields}
        parsed = kind.Settings(**{**known, **settings})
        client = ServerClient(transport, keys, AddressBook(nobody))
        yield kind(parsed, Context("policy_model", keys, client))


async def nobody() -> Directory:
    """The directory of a run without servers."""
    return Directory(run_id="run-1", servers={}, families={}, settings={})


async def ask(server: Server, path: str, request: Json) -> tuple[HttpResponse, Json]:
    """POST straight into the app; the answer and its body as JSON (empty when it is none)."""
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    headers = {"content-type": "application/json"}
    answer = await local.send("POST", f"http://policy{path}", orjson.dumps(request), headers, 30.0)
    is_json = "json" in answer.headers["content-type"]
    return answer, orjson.loads(answer.body) if is_json else {}


@contextlib.asynccontextmanager
async def listening(server: ASGIApp) -> AsyncIterator[str]:
    """The server behind a real uvicorn on a free port; its base URL."""
    # Only if the protocol is given does asyncio set TCP_NODELAY, without which each response takes 40 ms longer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as held:
        held.bind(("127.0.0.1", 0))
        config = uvicorn.Config(server, log_level="error", ws="none", lifespan="off", loop="none")
        config.load()
        # Its `serve` would add signals, which are pytest's, and a tenth of a second until it notices its end.
        running = uvicorn.Server(config)
        running.lifespan = config.lifespan_class(config)
        await running.startup([held])
        try:
            yield f"http://127.0.0.1:{held.getsockname()[1]}"
        finally:
            running.force_exit = True
            await running.shutdown([held])

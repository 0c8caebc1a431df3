"""An OpenAI-compatible endpoint with almost no CPU cost, which plays a script. Measures the overhead of other servers.

It serves `POST /v1/chat/completions` and `POST /v1/responses`; `GET /stats` returns turn count and CPU time.
The script looks at the board, then moves Up and Down alternately, one move per turn; after `turns - 1` tool outputs it
sends a final message. All responses are encoded at startup, so a request costs parsing, one scan of the body and one
write. With `--capacity`, it behaves like an engine whose best number of concurrent calls is known; `--metrics` also
serves `GET /metrics` with vLLM's names. This is not an example of an HTTP server: it trusts its clients.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import orjson
import uvloop

from rollyard.records.types import Json

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"
CALL = b'"call_'
"""Precedes the number of a tool call, last in the id of the last tool output. Searched from the end, so that a long
conversation costs no more than a short one. Inside a text, its quote is escaped."""
USAGE = {"prompt_tokens": 700, "completion_tokens": 30, "total_tokens": 730}


class Script:
    """Encoded responses, by the number of the last tool call in the request."""

    def __init__(self, turns: int) -> None:
        self.chat = [http(_completion(turn, turns)) for turn in range(turns)]
        self.responses = [http(_response(turn, turns)) for turn in range(turns)]
        self.turns_served = 0

    def answer(self, request: bytes) -> bytes:
        """Return the response to a complete HTTP request."""
        if request.startswith(b"POST /v1/chat"):
            responses = self.chat
        elif request.startswith(b"POST /v1/responses"):
            responses = self.responses
        else:
            return self.stats()
        self.turns_served += 1
        at = request.rfind(CALL)
        while at > 0 and request[at - 1 : at] == b"\\":
            at = request.rfind(CALL, 0, at)
        turn = 0 if at < 0 else int(request[at + len(CALL) : request.index(b'"', at + len(CALL))]) + 1
        return responses[min(turn, len(responses) - 1)]

    def stats(self) -> bytes:
        """Return a response with the number of turns served and the CPU seconds of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return http({"turns": self.turns_served, "cpu_s": used.ru_utime + used.ru_stime})


@dataclass
class Engine:
    """Takes `latency_s` per call, serves at most `capacity` calls at once, and slows down with more than `most`.

    With up to `capacity` calls the throughput grows with their number; up to `most` it is constant, because calls wait;
    beyond, it falls, as that of an engine which preempts calls.
    """

    latency_s: float = 0.0
    spread: float = 0.0
    """By what share of it the latency of a call differs at most. With one latency, episodes that start together stay
    together, and servers handle them in bursts whose length is chance."""
    capacity: int = 1 << 30
    most: int = 1 << 30
    running: int = 0
    preemptions: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def call(self, reply: Callable[[], None]) -> None:
        """Call `reply` once the engine has served the call."""
        if not self.latency_s:
            reply()
            return
        self.waiting.append(reply)
        self._serve()

    def _serve(self) -> None:
        while self.waiting and self.running < self.capacity:
            reply, crowd = self.waiting.popleft(), (self.running + len(self.waiting) + 1) / self.most
            self.running += 1
            self.preemptions += crowd > 1
            latency_s = self.latency_s * self.rng.uniform(1 - self.spread, 1 + self.spread)
            asyncio.get_running_loop().call_later(latency_s * max(1.0, crowd), self._end, reply)

    def _end(self, reply: Callable[[], None]) -> None:
        self.running -= 1
        reply()
        self._serve()

    def metrics(self) -> bytes:
        text = (
            f'vllm:num_requests_running{{engine="0",model_name="script"}} {self.running:.1f}\n'
            f'vllm:num_requests_waiting{{engine="0",model_name="script"}} {len(self.waiting):.1f}\n'
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="script"}} {min(1.0, self.running / self.most)}\n'
            f'vllm:num_preemptions_total{{engine="0",model_name="script"}} {self.preemptions:.1f}\n'
        )
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(text)
        return head + text.encode()


class Connection(asyncio.Protocol):
    """One keep-alive connection; responses are sent in the order of the requests."""

    def __init__(self, answer: Callable[[bytes], bytes], engine: Engine | None = None) -> None:
        self._answer = answer
        self._engine = engine or Engine()
        self._buffer = b""
        self._write: Callable[[bytes], None] = lambda data: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write  # uvloop's transport is not a subclass

    def connection_lost(self, error: Exception | None) -> None:
        self._write = lambda data: None

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while (head_end := buffer.find(HEAD_END)) >= 0:
            end = head_end + 4 + _content_length(buffer[:head_end])
            if len(buffer) < end:
                break
            request, buffer = (buffer, b"") if len(buffer) == end else (buffer[:end], buffer[end:])
            self._reply(request)
        self._buffer = buffer

    def _reply(self, request: bytes) -> None:
        response = self._answer(request)
        if request.startswith(b"GET"):
            self._write(response)
        else:
            self._engine.call(lambda: self._write(response))


def _content_length(head: bytes) -> int:
    """Return the length of the body that follows `head`; clients use different cases for the header."""
    at = head.find(b"Content-Length:")
    at = head.lower().find(LENGTH) if at < 0 else at
    return 0 if at < 0 else int(head[at + len(LENGTH) :].split(b"\r\n", 1)[0])


def http(body: Json) -> bytes:
    data = orjson.dumps(body)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


def _move(turn: int, turns: int) -> str | None:
    """Return the arguments of the tool call after `turn` tool outputs; None for the final message."""
    if turn >= turns - 1:
        return None
    moves = [] if turn == 0 else [("Up", "Down")[turn % 2]]
    return orjson.dumps({"actions": moves}).decode()


def _completion(turn: int, turns: int) -> Json:
    message: Json = {"role": "assistant", "content": None}
    if (arguments := _move(turn, turns)) is None:
        message["content"] = "I stop here."
    else:
        function = {"name": "step", "arguments": arguments}
        message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if arguments else "stop"}
    serial = {"id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 0, "model": "script"}
    return {**serial, "choices": [choice], "usage": USAGE}


def _response(turn: int, turns: int) -> Json:
    item: Json
    if (arguments := _move(turn, turns)) is None:
        text = {"type": "output_text", "text": "I stop here.", "annotations": []}
        item = {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    else:
        item = {"id": f"fc_{turn}", "type": "function_call", "call_id": f"call_{turn}", "name": "step"}
        item |= {"arguments": arguments, "status": "completed"}
    usage: Json = {"input_tokens": 700, "output_tokens": 30, "total_tokens": 730}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    serial = {"id": f"resp_{turn}", "object": "response", "created_at": 0, "model": "script", "status": "completed"}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**serial, **rest, "output": [item], "usage": usage}


async def serve(
    answer: Callable[[bytes], bytes], port: int = 0, engine: Engine | None = None, host: str = "127.0.0.1"
) -> None:
    """Serve until terminated; the first line printed is the port."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answer, engine), host, port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.freeze()
    await server.serve_forever()


def main() -> None:
    """Serve until terminated; the first line printed is the port."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free port, which is printed")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="delay of each response")
    parser.add_argument("--spread", type=float, default=0.0, help="share by which it varies (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=6, help="model calls per episode")
    parser.add_argument("--capacity", type=int, default=1 << 30, help="calls that are served at once; others wait")
    parser.add_argument("--most", type=int, default=1 << 30, help="calls above which the throughput falls")
    parser.add_argument("--metrics", action="store_true", help="serve /metrics with vLLM's names")
    options = parser.parse_args()
    engine = Engine(options.latency_ms / 1000, options.spread, options.capacity, options.most)
    script = Script(options.turns)

    def answer(request: bytes) -> bytes:
        if options.metrics and request.startswith(b"GET /metrics"):
            return engine.metrics()
        return script.answer(request)

    uvloop.run(serve(answer, options.port, engine, options.host))


if __name__ == "__main__":
    main()

"""What a model server before an endpoint meets: broken engines, hostile bytes, one bad address of ten, odd tool calls."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.chaos.endpoint import Endpoint, Request, Script, completion, http, later, scripted, tool_call
from tests.chaos.fault import Fault
from tests.chaos.ground import ENVIRONMENT, MODEL, QUICK, REPEATS, TASKS, Ground, stack
from tests.chaos.oracle import Broken, hold, injected, no_crash, read, whole
from tests.chaos.workspace import Run

SHARE = 0.15
"""Of the calls of a single endpoint that go wrong: three tries then fail once in 300 calls, three attempts never."""
GROWTH_MB = 256
"""That hostile bytes may cost a server's process."""
MOST_CALLS = 0.05
"""Share of all calls that one bad address of ten may take."""

Spoil = Callable[[Request, asyncio.Transport], None]


# --- broken engines: a message without anything in it ---


def says(body: Any, **arguments: Any) -> Spoil:
    data = http(body, **arguments)
    return lambda request, transport: later(transport, QUICK, data)


def empty(finish_reason: Any, **message: Any) -> dict[str, Any]:
    made = completion({"content": None, **message})
    made["choices"][0]["finish_reason"] = finish_reason
    return made


EMPTY: list[tuple[str, Any]] = [
    ("a message without anything", {"choices": [{"message": {}}]}),
    ("finish_reason null and no text", empty(None)),
    ("finish_reason null and empty text", empty(None, content="")),
    ("finish_reason engine_error", empty("engine_error")),
    ("an unknown finish_reason", empty("melted")),
    ("finish_reason abort", empty("abort", content="")),
    ("tool_calls announced and none there", empty("tool_calls", tool_calls=[])),
    ("a finish_reason that is a number", empty(7)),
    ("no choices", {**completion({}), "choices": []}),
    ("a null message", {"choices": [{"message": None, "finish_reason": "stop"}]}),
    ("choices that are text", {"choices": "none"}),
    ("an error with status 200", {"error": {"message": "engine died", "code": 500}}),
]


class Sometimes:
    """The script, of which a share is spoilt; drawn by a seed."""

    def __init__(self, spoil: Spoil, share: float, chance: random.Random) -> None:
        self._spoil = spoil
        self._share = share
        self._chance = chance
        self._script = Script(latency_s=QUICK)
        self.spoilt = 0

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if request.head.startswith(b"POST") and self._chance.random() < self._share:
            self.spoilt += 1
            self._spoil(request, transport)
        else:
            self._script(request, transport)


async def sometimes(spoil: Spoil, ground: Ground, chance: random.Random) -> None:
    """Some calls are spoilt: every rollout is measured all the same, and is what it would have been."""
    async with ground.lock("engine"):
        run, endpoint = await engine(ground)
        behaviour = Sometimes(spoil, SHARE, chance)
        endpoint.behaviour = behaviour
        output = ground.output()
        before = memory_mb(await run.pid(MODEL))
        command = await ground.begin(run, output, "+max_attempts=5", "+num_samples_in_parallel=16")
        status = await command.ends()
        injected(behaviour.spoilt >= 5, f"{behaviour.spoilt} calls were spoilt")
        no_crash(command.said)
        whole(output, TASKS, REPEATS)
        hold(status == 0, f"ended with {status}")
        growth = memory_mb(await run.pid(MODEL)) - before
        hold(growth < GROWTH_MB, f"the model server grew by {growth:.0f} MB")


async def always(spoil: Spoil, ground: Ground, chance: random.Random) -> None:
    """Every answer is like that: nothing is measured, and the command says so."""
    async with ground.lock("engine"):
        run, endpoint = await engine(ground)
        behaviour = Sometimes(spoil, 1.0, chance)
        endpoint.behaviour = behaviour
        output = ground.output()
        command = await ground.begin(run, output, "+max_attempts=1", "+limit=10", "+num_repeats=1")
        status = await command.ends()
        injected(behaviour.spoilt, "no call was spoilt")
        rewards = [row["reward"] for row in read(output)]
        hold(not rewards, f"{len(rewards)} of 10 have a reward: {rewards[:5]}")
        hold(status == 1, f"ended with {status}")
        no_crash(command.said)


async def engine(ground: Ground) -> tuple[Run, Endpoint]:
    """A run before one endpoint whose behaviour each fault sets."""
    limits = {"request_timeout_s": 4.0, "max_attempts": 3, "retry_pause_s": 0.05}
    return await ground.shared("engine", lambda: ground.playing(model=limits))


# --- hostile bytes ---


def head(request: Request, transport: asyncio.Transport, lines: bytes) -> None:
    transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + lines + b"\r\n")


def pour(transport: asyncio.Transport, piece: bytes, most: int) -> None:
    """Write `piece` again and again while the other side takes it, `most` bytes in all."""
    written = 0

    def more() -> None:
        nonlocal written
        if transport.is_closing() or written >= most:
            transport.close()
            return
        if transport.get_write_buffer_size() < 4 * len(piece):
            transport.write(piece)
            written += len(piece)
        asyncio.get_running_loop().call_later(0.001, more)

    more()


def endless_body(request: Request, transport: asyncio.Transport) -> None:
    head(request, transport, b"connection: close\r\n")
    pour(transport, b" " * 2**20, 2**30)


def endless_chunks(request: Request, transport: asyncio.Transport) -> None:
    head(request, transport, b"transfer-encoding: chunked\r\n")
    pour(transport, b"100000\r\n" + b" " * 2**20 + b"\r\n", 2**30)


def endless_headers(request: Request, transport: asyncio.Transport) -> None:
    transport.write(b"HTTP/1.1 200 OK\r\n")
    pour(transport, b"x-more: " + b"y" * 2**16 + b"\r\n", 2**30)


def many_headers(request: Request, transport: asyncio.Transport) -> None:
    transport.write(b"HTTP/1.1 200 OK\r\n")
    pour(transport, b"x-m: y\r\n" * 10_000, 2**28)


def announced(request: Request, transport: asyncio.Transport) -> None:
    """A body of a terabyte is announced and never comes."""
    head(request, transport, b"content-length: 1000000000000\r\n")
    transport.write(b'{"id": ')


def bomb() -> bytes:
    """1 GB of spaces, packed to a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(b" " * 2**20) for _ in range(1024)]
    return b"".join([*pieces, packer.flush()])


class Packed:
    """Answers a gzip bomb, made once."""

    def __init__(self, encoding: bytes = b"gzip") -> None:
        self._encoding = encoding
        self._data = b""

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        self._data = self._data or bomb()
        lines = b"content-encoding: %b\r\ncontent-length: %d\r\n" % (self._encoding, len(self._data))
        head(request, transport, lines)
        transport.write(self._data)


def raw(data: bytes, *, close: bool = False) -> Spoil:
    def spoil(request: Request, transport: asyncio.Transport) -> None:
        transport.write(data)
        if close:
            asyncio.get_running_loop().call_later(0.01, transport.close)

    return spoil


def dripping(request: Request, transport: asyncio.Transport) -> None:
    """The true answer, a byte every tenth of a second."""
    data = http(scripted(request.turn))

    def drip(at: int = 0) -> None:
        if not transport.is_closing() and at < len(data):
            transport.write(data[at : at + 1])
            asyncio.get_running_loop().call_later(0.1, drip, at + 1)

    drip()


def reset(request: Request, transport: asyncio.Transport) -> None:
    transport.abort()


def silent(request: Request, transport: asyncio.Transport) -> None:
    """Nothing comes."""


def slow(request: Request, transport: asyncio.Transport) -> None:
    later(transport, 1.5, http(scripted(request.turn)))


def twice(request: Request, transport: asyncio.Transport) -> None:
    """The right answer, and behind it another one that nobody asked for."""
    later(transport, 0.0, http(scripted(request.turn)))
    later(transport, 0.01, http(completion({"content": "An answer to somebody else."})))


GZIPPED = gzip.compress(b'{"choices": ')
HOSTILE: list[tuple[str, Spoil, str]] = [
    ("a body without an end", endless_body, "802 MB in 5 s"),
    ("chunks without an end", endless_chunks, "802 MB in 5 s"),
    ("headers without an end", endless_headers, "memory without a limit"),
    ("a hundred thousand headers", many_headers, "memory without a limit"),
    ("a gzip bomb", Packed(), "5.5 GB of memory"),
    ("a deflate bomb", Packed(b"deflate"), "5.5 GB of memory"),
    ("a terabyte announced", announced, "waits for its deadline"),
    ("a byte every tenth of a second", dripping, "waits for its deadline"),
    (
        "torn gzip",
        raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n" + GZIPPED[:12], close=True),
        "hangs to the deadline",
    ),
    (
        "an unknown encoding",
        raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: zz\r\nconnection: close\r\n\r\n{}", close=True),
        "hangs to the deadline",
    ),
    ("no HTTP", raw(b"SSH-2.0-OpenSSH_9.2\r\n", close=True), "tried again"),
    ("a second answer behind the first", twice, "may be taken for the next call's"),
    ("the connection reset", reset, "tried again"),
    (
        "a header that is not Latin-1",
        raw(b"HTTP/1.1 200 OK\r\nx-a: \xe2\x82\xac\r\ncontent-length: 2\r\n\r\n{}"),
        "an error at every call",
    ),
]


# --- one or two bad addresses of ten ---

BAD_WAYS: list[tuple[str, Spoil]] = [
    ("torn JSON", raw(http(b'{"choices": [{"mess'))),
    ("HTML with status 200", raw(http(b"<html>502 Bad Gateway</html>", kind="text/html"))),
    ("JSON of another shape", raw(http([]))),
    ("empty answers", raw(http({"choices": [{"message": {}}]}))),
    ("status 500", raw(http({"error": {"message": "no"}}, 500))),
    ("status 503", raw(http(b"", 503))),
    ("status 429", raw(http({"error": {"message": "slow down"}}, 429, "retry-after: 1\r\n"))),
    ("status 404", raw(http({"error": {"message": "no such model"}}, 404))),
    ("status 401", raw(http({"error": {"message": "bad key"}}, 401))),
    ("a redirect", raw(http(b"", 302, "location: http://127.0.0.1:1/\r\n"))),
    ("no HTTP", raw(b"\x15\x03\x01\x00\x02\x02P", close=True)),
    ("the connection reset", reset),
    ("torn bodies", raw(http(scripted(0))[:-30], close=True)),
    ("silence", silent),
    ("slow answers", slow),
]


async def of_ten(spoil: Spoil | str, bad: int, ground: Ground, chance: random.Random) -> None:
    """Everything is measured, and the bad ones get less than 5 % of the calls each."""
    endpoints = [Endpoint(Script(latency_s=0.1)) for _ in range(10)]
    closed: list[socket.socket] = []
    try:
        for one in endpoints:
            await one.listen()
        chosen = chance.sample(endpoints, bad)
        for one in chosen:
            if callable(spoil):
                one.behaviour = spoil
            else:
                await one.close()
                if spoil == "deaf":
                    closed.append(deaf(int(one.url.rpartition(":")[2])))
        limits = {"request_timeout_s": 3.0, "retry_pause_s": 0.05}
        async with ground.run(stack([one.url for one in endpoints], model=limits), "+colocate=true") as run:
            output = ground.output()
            wanted = ["+num_samples_in_parallel=40", "+num_repeats=6"]
            command = await ground.begin(run, output, *wanted)
            status = await command.ends()
            no_crash(command.said)
            whole(output, TASKS, 6)
            hold(status == 0, f"ended with {status}")
        calls = sum(one.calls for one in endpoints)
        for one in chosen:
            if callable(spoil):
                injected(one.calls, "the bad address was never asked")
            hold(one.calls < MOST_CALLS * calls, f"{one.calls} of {calls} calls went to a bad address")
    finally:
        for sock in closed:
            sock.close()
        for one in endpoints:
            await one.close()


def deaf(port: int) -> socket.socket:
    """Listens, and its queue is full: further connections get no answer at all."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(0)
    for _ in range(3):
        other = socket.socket()
        other.setblocking(False)
        other.connect_ex(("127.0.0.1", port))
        _HELD.append(other)
    return listening


_HELD: list[socket.socket] = []


# --- the model's mistakes ---


def odd_call(name: str, arguments: Any) -> dict[str, Any]:
    return completion(tool_call(name, arguments, 0))


SURROGATE = rb'{"id":"c","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_0","type":"function","function":{"name":"step","arguments":"{\"actions\": [\"\ud83d\"]}"}}]}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
SURROGATE_NAME = SURROGATE.replace(rb'"name":"step"', rb'"name":"st\udc00ep"')
SURROGATE_TEXT = SURROGATE.replace(rb'"content":null', rb'"content":"\ud83d"')
SURROGATE_ID = SURROGATE.replace(rb'"id":"call_0"', rb'"id":"call_\udfff"')
MISTAKES: list[tuple[str, Any, str]] = [
    ("an empty tool name", odd_call("", {"actions": []}), "the rollout is lost at the next call"),
    ("a lone surrogate in the arguments", SURROGATE, "the rollout is lost at the next call"),
    ("a lone surrogate in the tool's name", SURROGATE_NAME, "the rollout is lost"),
    ("a lone surrogate in its words", SURROGATE_TEXT, "the rollout is lost"),
    ("a lone surrogate in the call's id", SURROGATE_ID, "the rollout is lost"),
    ("an escaped surrogate in the arguments", odd_call("step", r'{"actions": ["\ud83d"]}'), "the rollout is lost"),
    ("arguments that are no JSON", odd_call("step", '{"actions": ["Up"'), "words"),
    ("arguments that are a list", odd_call("step", [1]), "words"),
    ("arguments that are null", odd_call("step", "null"), "words"),
    ("empty arguments", odd_call("step", ""), "words"),
    ("NaN as an argument", odd_call("step", '{"actions": NaN}'), "taken"),
    ("arguments nested 2,000 deep", odd_call("step", '{"actions": ' + "[" * 2000 + "]" * 2000 + "}"), "an error"),
    ('step({"response": {}})', odd_call("step", {"response": {}}), "a terminal bad_task: the model voids its rollout"),
    ("step with a response and no JSON", odd_call("step", '{"response": '), "bad_request: the rollout is voided"),
    (
        "step with a whole response",
        odd_call("step", {"response": {"output": []}, "actions": []}),
        "session_lost: a free retry",
    ),
    *(
        (f"the tool name {name[:40]!r}", odd_call(name, {}), before)
        for name, before in (
            ("verify", "words"),
            ("close", "words"),
            ("reset", "words"),
            ("seed_session", "words"),
            ("aggregate_metrics", "words"),
            ("run", "words"),
            ("v1/responses", "words"),
            ("../verify", "words"),
            ("step/../close", "words"),
            ("step?x=1", "words"),
            ("step#", "words"),
            ("st ep", "words"),
            ("openapi.json", "words"),
            ("_close", "words"),
            ("turn", "words"),
            ("agent/close", "words"),
            ("agent", "words"),
            ("x" * 5000, "words"),
            ("step\r\nx: y", "words"),
            ("\x1b[31mstep", "words"),
            ("schritt\u00e9", "words"),
        )
    ),
]


class Mistaken:
    """The script, whose second call in every episode is that mistake; its answer counts as no move."""

    def __init__(self, mistake: bytes | dict[str, Any]) -> None:
        self._mistake = http(mistake)
        self._script = [http(scripted(turn)) for turn in range(6)]
        self._models = http({"object": "list", "data": []})
        self.made = 0

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if not request.head.startswith(b"POST"):
            transport.write(self._models)
        elif request.turn == 1:
            self.made += 1
            transport.write(self._mistake)
        else:
            transport.write(self._script[max(0, min(request.turn - (request.turn > 1), 5))])


async def mistaken(mistake: Any, ground: Ground, chance: random.Random) -> None:
    """Every episode makes the mistake, hears words about it and is measured at its first attempt."""
    async with ground.lock("engine"):
        run, endpoint = await engine(ground)
        behaviour = Mistaken(mistake)
        endpoint.behaviour = behaviour
        output = ground.output()
        command = await ground.begin(run, output, "+num_repeats=1", "+limit=10", "+num_repeats=1")
        status = await command.ends()
        injected(behaviour.made >= 10, f"{behaviour.made} mistakes were made")
        no_crash(command.said)
        failed = read(output.with_name("rollouts_failures.jsonl"))
        hold(
            not failed,
            f"{len(failed)} failed attempts: {failed[0]['failure_kind'] if failed else ''} {failed[0]['detail'][:200] if failed else ''}",
        )
        hold(status == 0, f"ended with {status}: {command.said[-400:]}")
        rows = read(output)
        hold(len(rows) == 10, f"{len(rows)} of 10 measured")
        for row in rows:
            outputs = [item for item in row["response"]["output"] if item["type"] == "function_call_output"]
            injected(len(outputs) == 6, f"{len(outputs)} answers of tools in an episode, and {row['finish_reason']}")
            hold(
                row["reward"] == 1.0 or "said_to" in str(outputs[1]["output"]),
                f"reward {row['reward']}: {row['wrong']}",
            )
        left = await run.gauge(ENVIRONMENT, "rollyard_sessions")
        hold(not left, f"{left:.0f} sessions are left")


def memory_mb(pid: int | None) -> float:
    """The most that the process has held so far."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    raise Broken("the model server is gone")


FAULTS = [
    *(
        Fault(
            f"an engine that answers {words}, now and then",
            3,
            "`answered`, with a reward",
            "a failed attempt, tried again",
            partial(sometimes, says(body)),
            slow=number > 5,
        )
        for number, (words, body) in enumerate(EMPTY)
    ),
    *(
        Fault(
            f"an engine that only answers {words}",
            3,
            "`answered`, with a reward",
            "no reward, exit 1",
            partial(always, says(body)),
            slow=number > 5,
        )
        for number, (words, body) in enumerate(EMPTY)
    ),
    *(
        Fault(
            f"one endpoint of ten: {words}",
            3,
            "takes most of the traffic or stops the run",
            "all measured, under 5 % of the calls",
            partial(of_ten, spoil, 1),
            slow=number % 4 != 0,
        )
        for number, (words, spoil) in enumerate(
            [*BAD_WAYS, ("a refused connection", "refused"), ("a deaf address", "deaf")]
        )
    ),
    *(
        Fault(
            f"two endpoints of ten: {words}",
            3,
            "takes most of the traffic or stops the run",
            "all measured, under 5 % of the calls each",
            partial(of_ten, spoil, 2),
            slow=number != 0,
        )
        for number, (words, spoil) in enumerate(
            [*BAD_WAYS, ("a refused connection", "refused"), ("a deaf address", "deaf")]
        )
    ),
    *(
        Fault(
            f"a model's mistake: {words}",
            3,
            before,
            "words to the model; the rollout is measured",
            partial(mistaken, mistake),
            slow=number > 15,
        )
        for number, (words, mistake, before) in enumerate(MISTAKES)
    ),
    *(
        Fault(
            f"an endpoint that sends {words}",
            4,
            before,
            "a failed try within its limits; all measured",
            partial(sometimes, spoil),
            slow=number in (1, 3, 5, 7),
        )
        for number, (words, spoil, before) in enumerate(HOSTILE)
    ),
]

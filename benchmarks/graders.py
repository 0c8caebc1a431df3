"""Graders of mathematical answers: ours, math-verify and the string equality of the MATH data set.

Each says of a triple (problem, gold, response) whether the response is right. Ours is asked over the wire that an agent
uses, in this process. math-verify runs in processes of its own: its timeouts are alarms, which do not end a long
multiplication, so that a process which is late by more than they allow is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

import orjson
from pydantic import BaseModel, ConfigDict

from rollyard.resources_servers.gsm8k.app import server as gsm8k
from rollyard.resources_servers.math.app import server as math
from rollyard.resources_servers.math.hendrycks import last_box, same_string
from rollyard.services.errors import Failure
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient, Session
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.run_types import Directory, Keys
from rollyard.services.server.app import Context, Server
from rollyard.services.types import Json

Outcome = Literal["right", "wrong", "failed"]
"""`failed`: no verdict. With ours such a rollout is sampled again; with math-verify it counts as wrong."""

ENVIRONMENTS: Mapping[str, type[Server]] = {"math": math, "gsm8k": gsm8k}
AT_ONCE = 4
GRACE_S = 2.0
"""What a process of math-verify may take beyond its own two timeouts of 5 s, or to start."""


class Triple(BaseModel):
    """A response to a problem, and what a careful reader says of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    environment: Literal["math", "gsm8k"]
    half: Literal["dev", "held_out"]
    """Whether the graders were repaired with it in view."""
    style: str
    """The class of spellings or of mistakes that it belongs to."""
    right: bool
    problem: str
    gold: str
    response: str
    note: str


async def ours(triples: Sequence[Triple]) -> list[Outcome]:
    """The servers of the environments, with the settings that they have by default."""
    async with _client() as client:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(triple: Triple) -> Outcome:
            async with limit:
                return await _asked(client, triple)

        return list(await asyncio.gather(*map(one, triples)))


async def _asked(client: ServerClient, triple: Triple) -> Outcome:
    asked = "problem" if triple.environment == "math" else "question"
    row: Json = {asked: triple.problem, "expected_answer": triple.gold}
    message = {"type": "message", "content": [{"type": "output_text", "text": triple.response}]}
    session = Session(client, triple.environment)
    await session.post("/seed_session", orjson.dumps(row), 60.0)
    try:
        body = orjson.dumps({**row, "response": {"status": "completed", "output": [message]}})
        verdict = orjson.loads(await session.post("/verify", body, 60.0))
    except Failure:
        return "failed"
    finally:
        await session.post("/close", b"{}", 60.0)
    return "right" if verdict["reward"] == 1.0 else "wrong"


@contextlib.asynccontextmanager
async def _client() -> AsyncIterator[ServerClient]:
    """Reaches the two environments, which run in this process."""
    urls = {name: [f"http://{name}:1"] for name in ENVIRONMENTS}
    keys = Keys(run_id="verdicts", secret="of this process alone")

    async def directory() -> Directory:
        return Directory(run_id=keys.run_id, servers=urls, families={}, settings={})

    transport = LocalTransport(HttpTransport())
    client = ServerClient(transport, keys, AddressBook(directory), RetryPolicy(wait_s=1.0))
    servers = [kind(kind.Settings(), Context(name, keys, client)) for name, kind in ENVIRONMENTS.items()]
    for server in servers:
        transport.mount(urls[server.name][0], server)
        await server.start()
    try:
        yield client
    finally:
        for server in servers:
            await server.stop()
        await transport.close()


def hendrycks(triple: Triple) -> Outcome:
    """`is_equiv` of the MATH repository on the last box."""
    answer = last_box(triple.response)
    return "right" if answer is not None and same_string(triple.gold, answer) else "wrong"


async def math_verify(triples: Sequence[Triple]) -> list[Outcome]:
    """`verify(parse(gold), parse(response))`, the gold between dollars, with the library's defaults."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as threads:
        halves = [
            loop.run_in_executor(threads, _with_library, [(one.gold, one.response) for one in triples[first::2]])
            for first in (0, 1)
        ]
        even, odd = await asyncio.gather(*halves)
    found: list[Outcome] = ["wrong"] * len(triples)
    found[0::2], found[1::2] = even, odd
    return found


def _with_library(pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
    found: list[Outcome] = []
    process, pipe = _started()
    for pair in pairs:
        with contextlib.suppress(OSError):
            pipe.send(pair)
        if pipe.poll(10.0 + GRACE_S):
            with contextlib.suppress(EOFError, OSError):
                found.append("right" if pipe.recv() else "wrong")
                continue
        found.append("failed")
        _end(process, pipe)
        process, pipe = _started()
    _end(process, pipe)
    return found


def _started() -> tuple[BaseProcess, Connection]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_answer, args=(there,), daemon=True)
    process.start()
    there.close()
    if not here.poll(60.0):
        raise RuntimeError("math-verify was not imported within 60 s")
    here.recv()
    return process, here


def _end(process: BaseProcess, pipe: Connection) -> None:
    process.kill()
    process.join()
    pipe.close()


def _answer(pipe: Connection) -> None:
    """The process of math-verify: a verdict for each pair (gold, response)."""
    import resource

    from math_verify import parse, verify  # type: ignore[import-untyped]

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    pipe.send(True)
    with contextlib.suppress(EOFError):
        while True:
            gold, response = pipe.recv()
            try:
                pipe.send(bool(verify(parse(f"${gold}$"), parse(response))))
            except Exception:
                pipe.send(False)

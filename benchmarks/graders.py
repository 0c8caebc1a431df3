"""Graders of mathematical answers: Rollyard's, math-verify, and the string equality of the MATH dataset.

Each one decides whether the response of a triple (problem, gold, response) is right. Rollyard's servers run in this
process and are called as an agent calls them. math-verify runs in separate processes: its timeouts use SIGALRM, which
cannot interrupt a long multiplication, so a process that exceeds them is killed.
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

from rollyard.records.errors import Failure
from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import server as gsm8k
from rollyard.resources_servers.math.app import last_box, same_string
from rollyard.resources_servers.math.app import server as math
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient, Session
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server

Outcome = Literal["right", "wrong", "failed"]
"""`failed`: no verdict. Rollyard would then sample the rollout again; with math-verify it counts as wrong."""

ENVIRONMENTS: Mapping[str, type[Server]] = {"math": math, "gsm8k": gsm8k}
PARALLEL = 4
GRACE_S = 2.0
"""Time that a math-verify process may use beyond its own two timeouts of 5 s."""


class Triple(BaseModel):
    """A response to a problem, with the label of a careful reader."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    environment: Literal["math", "gsm8k"]
    half: Literal["dev", "held_out"]
    """`dev`: used while the graders were developed."""
    style: str
    """Its class of notations or mistakes."""
    right: bool
    problem: str
    gold: str
    response: str
    note: str


async def rollyard(triples: Sequence[Triple]) -> list[Outcome]:
    """Grade with the environments' servers and their default settings."""
    async with _client() as client:
        limit = asyncio.Semaphore(PARALLEL)

        async def one(triple: Triple) -> Outcome:
            async with limit:
                return await _verdict(client, triple)

        return list(await asyncio.gather(*map(one, triples)))


async def _verdict(client: ServerClient, triple: Triple) -> Outcome:
    field = "problem" if triple.environment == "math" else "question"
    row: Json = {field: triple.problem, "expected_answer": triple.gold}
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
    """Yield a client of the two environments, which run in this process."""
    urls = {name: [f"http://{name}:1"] for name in ENVIRONMENTS}
    keys = Keys(run_id="verdicts", secret="only used in this process")

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
    """Apply `is_equiv` of the MATH repository to the last box."""
    answer = last_box(triple.response)
    return "right" if answer is not None and same_string(triple.gold, answer) else "wrong"


async def math_verify(triples: Sequence[Triple]) -> list[Outcome]:
    """Apply `verify(parse(gold), parse(response))` with the gold between dollar signs and the library's defaults."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as threads:
        halves = [
            loop.run_in_executor(threads, _run_math_verify, [(one.gold, one.response) for one in triples[first::2]])
            for first in (0, 1)
        ]
        even, odd = await asyncio.gather(*halves)
    outcomes: list[Outcome] = ["wrong"] * len(triples)
    outcomes[0::2], outcomes[1::2] = even, odd
    return outcomes


def _run_math_verify(pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    process, pipe = _start_process()
    for pair in pairs:
        with contextlib.suppress(OSError):
            pipe.send(pair)
        if pipe.poll(10.0 + GRACE_S):
            with contextlib.suppress(EOFError, OSError):
                outcomes.append("right" if pipe.recv() else "wrong")
                continue
        outcomes.append("failed")
        _end(process, pipe)
        process, pipe = _start_process()
    _end(process, pipe)
    return outcomes


def _start_process() -> tuple[BaseProcess, Connection]:
    parent, child = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(child,), daemon=True)
    process.start()
    child.close()
    if not parent.poll(60.0):
        raise RuntimeError("math-verify did not start within 60 s")
    parent.recv()
    return process, parent


def _end(process: BaseProcess, pipe: Connection) -> None:
    process.kill()
    process.join()
    pipe.close()


def _serve(pipe: Connection) -> None:
    """Run in the child process: send a verdict for each pair (gold, response)."""
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

"""Callers that send requests slowly or endlessly."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from functools import partial

from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import FaultContext
from tests.faults.chaos.faults.engines import GROWTH_MB, memory_mb
from tests.faults.chaos.faults.foreign_callers import addresses, port_of
from tests.faults.chaos.invariants import hold, injected

SLOW_CLIENTS = 50
"""Connections to each server."""
SLOWEST_S = 100.0
"""Time after which a connection without a complete request must be closed."""


async def slow_clients(context: FaultContext, rng: random.Random) -> None:
    """Connections with endless headers are closed, and others are served meanwhile."""
    async with context.playing() as (run, _):
        connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for url in (await addresses(run)).values():
            for _ in range(SLOW_CLIENTS):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
                writer.write(b"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                connections.append((reader, writer))
        closed_by_server = [asyncio.create_task(_drip_until_closed(reader, writer)) for reader, writer in connections]
        await context.completes(run, context.output())
        _, pending = await asyncio.wait(closed_by_server, timeout=SLOWEST_S)
        for task in pending:
            task.cancel()
        for _, writer in connections:
            writer.close()
        injected(len(connections) == 4 * SLOW_CLIENTS, "not every connection was made")
        hold(not pending, f"{len(pending)} of {len(closed_by_server)} connections are open after {SLOWEST_S:g} s")


async def _drip_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    closed = asyncio.create_task(reader.read())
    with contextlib.suppress(OSError):
        while not closed.done():
            writer.write(b"x")
            await asyncio.wait([closed], timeout=1.0)
    with contextlib.suppress(OSError):
        await closed


async def slow_bodies(context: FaultContext, rng: random.Random) -> None:
    """The same with a body that never arrives."""
    async with context.playing() as (run, _):
        closed_by_server = []
        for url in (await addresses(run)).values():
            for _ in range(SLOW_CLIENTS // 2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
                lines = b"Host: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{"
                writer.write(b"POST /run HTTP/1.1\r\n" + lines)
                closed_by_server.append(asyncio.create_task(_drip_until_closed(reader, writer)))
        await context.completes(run, context.output())
        for task in closed_by_server:
            task.cancel()


async def flood(first: bytes, piece: Callable[[], bytes], most: int, context: FaultContext, rng: random.Random) -> None:
    """The connection is closed long before everything is read, memory stays bounded, and others are served."""
    async with context.playing() as (run, _):
        pids = {
            "head": run.command.process.pid,
            **{shown["server_name"]: shown["pid"] for shown in await run.servers()},
        }
        for name, url in (await addresses(run)).items():
            before = memory_mb(pids[name], afresh=True)
            sent = await _pour(port_of(url), first, piece(), most)
            hold(sent < most, f"{name} took {sent / 2**20:.0f} MB of it")
            growth = memory_mb(pids[name]) - before
            hold(growth < GROWTH_MB, f"{name} grew by {growth:.0f} MB")
        await context.completes(run, context.output())


async def _pour(port: int, first: bytes, piece: bytes, most: int) -> int:
    """Number of bytes of a request that the server reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    response = asyncio.create_task(reader.read())
    sent = 0
    writer.write(b"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\n" + first)
    try:
        while sent < most and not response.done():
            writer.write(piece)
            sent += len(piece)
            await asyncio.wait_for(writer.drain(), 20.0)
            await asyncio.sleep(0)
    except (OSError, TimeoutError):
        pass
    finally:
        response.cancel()
        writer.close()
    return sent


def one_endless_header() -> bytes:
    return b"x" * 2**16


def many_headers() -> bytes:
    return b"".join(b"x-%d: %b\r\n" % (number, b"y" * 100) for number in range(500))


def endless_chunks() -> bytes:
    return b"100000\r\n" + b" " * 2**20 + b"\r\n"


CHUNKED = b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"

FAULTS = [
    Fault(
        "200 connections that send one header byte per second",
        4,
        "all closed; a concurrent collection is complete",
        slow_clients,
    ),
    Fault("100 connections whose bodies never come", 4, "a concurrent collection is complete", slow_bodies, slow=True),
    Fault("a request with one endless header", 4, "closed", partial(flood, b"x-more: ", one_endless_header, 2**26)),
    Fault("a request with endless headers", 4, "closed", partial(flood, b"", many_headers, 2**26), slow=True),
    Fault(
        "a request with an endless body",
        4,
        "closed after 256 MB",
        partial(flood, CHUNKED, endless_chunks, 2**29),
        slow=True,
        alone=True,
    ),
]

"""A server's process, guarded against the code of its server: blocks are named, forked children do not serve."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from rollyard.services.http.transport import HttpTransport
from tests.support.fixtures import http_transport
from tests.support.waiting import deadline_s

PROGRAM = """
import asyncio, logging, os, time
import uvloop
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.listener import bind
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.runtime.serve import guard_loop
from tests.support.fixtures import make_server

async def fork(call):
    child = os.fork() == 0
    if child and call.body == b"await":
        await asyncio.sleep(0)
    return b"child" if child else b"parent"

async def slow(call):
    await asyncio.sleep(0.05)
    return call.body

async def think_hard(call):
    time.sleep(1.0)
    return b"done"

async def main():
    logging.basicConfig()
    lag = LoopLag()
    server = make_server("environment")
    for path, handler in (("/fork", fork), ("/slow", slow), ("/block", think_hard)):
        server.route(path, handler)
    guard_loop(lag, "environment", blocked_s=0.2)
    hosted = HostedServer(server, bind("127.0.0.1", 0), lag=lag)
    await hosted.listen()
    await hosted.start()
    print(hosted.url, flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""


@contextlib.asynccontextmanager
async def server_process() -> AsyncIterator[tuple[str, HttpTransport, asyncio.StreamReader]]:
    """The URL of the server, a client, and what the process writes to stderr."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(deadline_s()), http_transport() as transport:
            yield (await process.stdout.readline()).decode().strip(), transport, process.stderr
    finally:
        process.kill()
        await process.wait()


async def post(transport: HttpTransport, url: str, path: str, body: bytes = b"{}") -> bytes:
    return (await transport.send("POST", url + path, body, {"content-type": "application/json"}, deadline_s())).body


async def test_a_forked_child_that_goes_on_does_not_take_requests_from_its_parent() -> None:
    async with server_process() as (url, transport, stderr):
        for number in range(3):
            neighbours = [post(transport, url, "/slow", b"%d-%d" % (number, each)) for each in range(20)]
            forks = [post(transport, url, "/fork", body) for body in (b"return", b"await")]
            *answers, first, second = await asyncio.gather(*neighbours, *forks)
            assert answers == [b"%d-%d" % (number, each) for each in range(20)]
            assert (first, second) == (b"parent", b"parent")
        assert b"environment: a forked child returned" in await stderr.readline()


async def test_code_that_blocks_the_event_loop_is_named_in_the_log() -> None:
    async with server_process() as (url, transport, stderr):
        assert await post(transport, url, "/block") == b"done"
        read = b""
        while b"time.sleep" not in read and b"think_hard" not in read:
            read += await stderr.readline()
        assert b"environment has blocked its event loop" in read

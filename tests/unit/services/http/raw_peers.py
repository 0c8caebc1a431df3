"""Raw peers on free ports: servers that say what a test wants, byte for byte, and callers that do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(serve: Serve, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """A TCP server; its port. `serve` gets every connection once a request's head is there."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


def saying(*pieces: bytes, last: bool = True) -> Serve:
    """Answers with these bytes; closes then (`last`) or waits for the caller to do so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if not last:
            await reader.read()

    return serve


def endlessly(start: bytes, piece: bytes, said: list[int]) -> Serve:
    """Answers with `start` and then `piece` again and again, until the caller hangs up; counts the bytes in `said`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            said.append(len(piece))
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return serve


async def ask(port: int, data: bytes) -> bytes:
    """Send bytes; what comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    answer = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(65536):
            answer += piece
    writer.close()
    return answer

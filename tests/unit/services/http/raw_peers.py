"""Raw TCP servers and clients on free ports that send exactly the bytes of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def tcp_server(handle: ConnectionHandler, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """A TCP server; yields its port. Calls `handle` for every connection once the head of a request has arrived."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await handle(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()


def respond(*chunks: bytes, close: bool = True) -> ConnectionHandler:
    """Sends these bytes, then closes the connection (`close`) or waits for the client to close it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        if not close:
            await reader.read()

    return handle


def respond_endlessly(start: bytes, chunk: bytes, sent: list[int]) -> ConnectionHandler:
    """Sends `start`, then `chunk` repeatedly until the client disconnects; records the sizes in `sent`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            sent.append(len(chunk))
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0)

    return handle


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes; return what the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    response = b""
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(65536):
            response += chunk
    writer.close()
    return response

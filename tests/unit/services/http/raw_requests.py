"""Requests to a listening server, written byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

import orjson

from rollyard.records.types import Json
from tests.support.waiting import deadline_s

JSON = "content-type: application/json"


async def exchange(url: str, data: bytes) -> tuple[int, Json]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(data)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), deadline_s())
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        kind = fields.get(b"content-type", b"")
        return int(head.split(b" ", 2)[1]), orjson.loads(body) if b"json" in kind and body else {}
    finally:
        writer.close()
        await writer.wait_closed()


async def request(
    url: str, *headers: str, line: str = "GET /health HTTP/1.1", hosts: Sequence[str] | None = None, body: bytes = b""
) -> tuple[int, Json]:
    """Send one request with these header lines and `hosts` as its Host headers, by default the right one."""
    host_names = [urlsplit(url).netloc] if hosts is None else hosts
    lines = [line, *(f"Host: {host}" for host in host_names), *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return await exchange(url, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)


async def post(url: str, *headers: str, body: bytes = b"{}") -> tuple[int, Json]:
    return await request(url, *headers, line="POST /echo HTTP/1.1", body=body)

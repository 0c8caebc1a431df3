"""Requests into a server without a socket, and how its problems are read."""

from __future__ import annotations

import orjson

from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpResponse, HttpTransport, LocalTransport
from rollyard.services.server.app import Server
from rollyard.services.types import Json
from tests.support.fixtures import send

BASE = "http://echo:1"


async def echo(call: RawRequest) -> bytes:
    """Say it again.

    More words about it.
    """
    return orjson.dumps(call.json())


async def ask(
    server: Server, path: str, body: Json | bytes = b"{}", method: str = "POST", **headers: str
) -> HttpResponse:
    transport = LocalTransport(HttpTransport())
    transport.mount(BASE, server)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send(transport, BASE + path, body, method, named)


def problem(answer: HttpResponse) -> Json:
    assert answer.headers["content-type"].startswith("application/problem+json")
    told: Json = orjson.loads(answer.body)
    assert told["status"] == answer.status and told["server"] and told["type"] and told["title"]
    return told

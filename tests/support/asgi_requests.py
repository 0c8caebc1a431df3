"""Requests to a server without a socket, and reading the problem documents it returns."""

from __future__ import annotations

import orjson

from rollyard.records.types import Json
from rollyard.services.http.request import HttpResponse, RawRequest
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Server
from tests.support.fixtures import send

BASE = "http://echo:1"


async def echo(call: RawRequest) -> bytes:
    """Say it again.

    More words about it.
    """
    return orjson.dumps(call.json())


async def call_app(
    server: Server, path: str, body: Json | bytes = b"{}", method: str = "POST", **headers: str
) -> HttpResponse:
    transport = LocalTransport(HttpTransport())
    transport.mount(BASE, server)
    dashed = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send(transport, BASE + path, body, method, dashed)


def problem(response: HttpResponse) -> Json:
    """The response's problem document (RFC 9457), with its required fields checked."""
    assert response.headers["content-type"].startswith("application/problem+json")
    document: Json = orjson.loads(response.body)
    assert document["status"] == response.status and document["server"] and document["type"] and document["title"]
    return document

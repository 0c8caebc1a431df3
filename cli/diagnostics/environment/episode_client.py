"""Opens episodes of an environment over HTTP, like an agent of another project: cookies only."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.errors import RunError
from rollyard.records.types import Json
from rollyard.services.http.client import SESSION_HEADER
from rollyard.services.http.transport import Transport

_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True)
class Reply:
    """A response of the environment."""

    status: int
    content: Any
    """The parsed body, or its text if it is not JSON."""

    @property
    def object(self) -> Json:
        """The body, or an empty object if it is not one."""
        return self.content if isinstance(self.content, dict) else {}

    def __str__(self) -> str:
        shown = self.object.get("detail") or self.content
        return f"status {self.status}: {shown if isinstance(shown, str) else orjson.dumps(shown).decode():.300}"


class EpisodeClient:
    """One episode of an environment."""

    def __init__(self, transport: Transport, url: str, timeout_s: float) -> None:
        self._transport = transport
        self._url = url
        self._timeout_s = timeout_s
        self._cookies: dict[str, str] = {}

    async def post(self, path: str, body: Any, extra: Mapping[str, str] | None = None) -> Reply:
        """Send a request and return the response, whatever its status. Raises Failure if there is none."""
        jar = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        headers = {**_HEADERS, **(extra or {}), **({"cookie": jar} if jar else {})}
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        response = await self._transport.send("POST", f"{self._url}{path}", data, headers, self._timeout_s)
        for cookie in response.cookies:
            name, _, value = cookie.partition(";")[0].strip().partition("=")
            self._cookies[name] = value
        return Reply(response.status, _parsed(response.body))


@dataclass(frozen=True)
class Environment:
    """The environment under test."""

    name: str
    url: str
    transport: Transport
    turn_based: bool
    """Whether episodes are opened with /reset instead of /seed_session."""
    timeout_s: float

    @asynccontextmanager
    async def episode(self, row: Json) -> AsyncIterator[tuple[EpisodeClient, Json]]:
        """Open an episode and yield it with the response; close it at the end. Raises RunError if it is refused."""
        client = EpisodeClient(self.transport, self.url, self.timeout_s)
        path = "/reset" if self.turn_based else "/seed_session"
        # A named session stays open until it is closed, even if the environment ends the episode before /verify.
        reply = await client.post(path, row, {SESSION_HEADER: uuid.uuid4().hex})
        if reply.status != 200:
            raise RunError(f"{path} refused a row with {reply}")
        try:
            yield client, reply.object
        finally:
            await client.post("/close", {})

    async def get(self, path: str) -> Any:
        """Return the parsed response; None unless the status is 200."""
        response = await self.transport.send("GET", f"{self.url}{path}", b"", {}, self.timeout_s)
        return _parsed(response.body) if response.status == 200 else None


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        return body.decode(errors="replace")

"""RegistryClient: registers servers with the head, sends their heartbeats, and fetches the directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from rollyard.records.activity import Collection
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Directory, HeadFile, Heartbeat, Keys, Registration, RunOrigin, ServerCode
from rollyard.records.types import Record
from rollyard.services.http.client import RUN_HEADER, SECRET_HEADER, ServerClient
from rollyard.services.http.request import raise_for_status, with_server
from rollyard.services.http.transport import HttpTransport, Transport

REPORT_DEADLINE_S = 2.0
"""Timeout for a collection's report. It is short because a report that fails is replaced by the next one."""

_CODE, _DIRECTORY = TypeAdapter(dict[str, ServerCode]), TypeAdapter(Directory)
T = TypeVar("T")


class Registry(Protocol):
    """What a collection needs from a head. Every method raises Failure if the head does not respond."""

    async def directory(self) -> Directory: ...

    async def code(self) -> dict[str, ServerCode]: ...

    async def report_collection(self, collection: Collection) -> None:
        """Show the status of the collection to those who read it from the head."""
        ...


class RegistryClient:
    def __init__(self, transport: Transport, head_url: str, keys: Keys) -> None:
        self._transport = transport
        self._url = head_url
        self._headers = {RUN_HEADER: keys.run_id, "content-type": "application/json"}
        if keys.token:
            self._headers["authorization"] = f"Bearer {keys.token}"
        self._registration_headers = {**self._headers, SECRET_HEADER: keys.secret}

    async def register(self, registration: Registration) -> None:
        """Register an instance, with its URL and readiness. Raises Failure if the head rejects it or is unreachable."""
        await self._post("/register", registration)

    async def send_heartbeat(self, heartbeat: Heartbeat) -> Directory:
        """Send a heartbeat and return the current directory. Raises Failure if the request fails."""
        return _read(_DIRECTORY, await self._post("/heartbeat", heartbeat))

    async def report_collection(self, collection: Collection) -> None:
        """Report a collection's status to the head. Raises Failure if the request fails."""
        body = collection.model_dump_json(by_alias=True).encode()
        await self._send("POST", "/collection", body, self._headers, REPORT_DEADLINE_S)

    async def directory(self) -> Directory:
        return _read(_DIRECTORY, await self._send("GET", "/directory", b"", self._headers))

    async def code(self) -> dict[str, ServerCode]:
        """Fetch the digests of the code that each server has loaded, if it reports them. Raises Failure."""
        return _read(_CODE, await self._send("GET", "/server_code", b"", self._headers))

    async def _post(self, path: str, record: Record) -> bytes:
        return await self._send("POST", path, record.model_dump_json().encode(), self._registration_headers)

    async def _send(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], deadline_s: float = 10.0
    ) -> bytes:
        try:
            return raise_for_status(
                await self._transport.send(method, self._url + path, body, headers, deadline_s), "head"
            ).body
        except Failure as failure:
            raise with_server(failure, "head") from failure


def _read(kind: TypeAdapter[T], body: bytes) -> T:
    try:
        return kind.validate_json(body)
    except ValidationError as error:
        detail = f"the head's response has an unexpected format: {body[:200].decode('utf-8', 'replace')!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server="head") from error


async def run_id_of(transport: HttpTransport, head: HeadFile) -> str:
    """Return the id of the run whose head is at `head.url`. Raises Failure, such as wrong_run."""
    status, body = await _get(transport, head, "/health")
    try:
        health = orjson.loads(body)
        if health["server"] != "head":
            raise Failure(FailureKind.WRONG_RUN, f"this is the server {health['server']!r}, not the head")
        return str(health["run_id"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        detail = _refusal(status, body) or f"not a Rollyard head (status {status})"
        raise Failure(FailureKind.WRONG_RUN, detail) from error


async def origin_of(transport: HttpTransport, head: HeadFile) -> RunOrigin:
    """Return where the run of this head was started. Raises Failure."""
    status, body = await _get(transport, head, "/origin")
    try:
        return RunOrigin.model_validate_json(body)
    except ValidationError as error:
        detail = f"it does not report where it was started (status {status}); it may be a different version of Rollyard"
        raise Failure(FailureKind.WRONG_RUN, detail) from error


def _refusal(status: int, body: bytes) -> str:
    if status == 401:
        return "it requires the run's token: export it as ROLLYARD_TOKEN"
    try:
        return str(orjson.loads(body)["detail"]) if status == 403 else ""
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""


def token_header(head: HeadFile) -> dict[str, str]:
    return {"authorization": f"Bearer {head.token}"} if head.token else {}


async def _get(transport: HttpTransport, head: HeadFile, path: str) -> tuple[int, bytes]:
    response = await transport.send("GET", head.url + path, b"", token_header(head), 5.0)
    return response.status, response.body


@dataclass(frozen=True)
class StackClients:
    client: ServerClient
    registry: Registry

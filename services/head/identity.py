"""Asks a head for the run that it belongs to."""

from __future__ import annotations

import orjson
from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import HeadFile, RunOrigin
from rollyard.services.http.transport import HttpTransport


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


async def _get(transport: HttpTransport, head: HeadFile, path: str) -> tuple[int, bytes]:
    headers = {"authorization": f"Bearer {head.token}"} if head.token else {}
    response = await transport.send("GET", head.url + path, b"", headers, 5.0)
    return response.status, response.body

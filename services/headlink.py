"""HeadLink: what a server process says to the head, and how anybody asks it where the servers are."""

from __future__ import annotations

from services.client import RUN_HEADER, SECRET_HEADER, good
from services.transport import Transport
from services.types import Directory, Heartbeat, Keys, Record, Registration


class HeadLink:
    """The head, from afar."""

    def __init__(self, transport: Transport, head_url: str, keys: Keys) -> None:
        self._transport = transport
        self._url = head_url
        self._headers = {RUN_HEADER: keys.run_id, "content-type": "application/json"}
        if keys.token:
            self._headers["authorization"] = f"Bearer {keys.token}"
        self._admission = {**self._headers, SECRET_HEADER: keys.secret}

    async def register(self, registration: Registration) -> None:
        """Say where an instance listens and whether it is ready. Raises Failure."""
        await self._post("/register", registration)

    async def beat(self, heartbeat: Heartbeat) -> Directory:
        """Say that an instance is alive; the directory as of now. Raises Failure."""
        return Directory.model_validate_json(await self._post("/heartbeat", heartbeat))

    async def directory(self) -> Directory:
        """Where everybody is. Raises Failure."""
        answer = await self._transport.send("GET", f"{self._url}/directory", b"", self._headers, 10.0)
        return Directory.model_validate_json(good(answer, "head").body)

    async def _post(self, path: str, record: Record) -> bytes:
        body = record.model_dump_json().encode()
        answer = await self._transport.send("POST", self._url + path, body, self._admission, 10.0)
        return good(answer, "head").body

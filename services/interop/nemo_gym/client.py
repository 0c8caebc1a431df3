"""NemoGymClient: calls the servers of a NeMo Gym stack by name."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.services.http.client import ServerClient
from rollyard.services.http.transport import HttpResponse

_HEADERS = {"content-type": "application/json"}


class NemoGymClient(ServerClient):
    """Has the deadlines and retries of ServerClient, but sends and expects none of Rollyard's headers."""

    async def send(
        self, url: str, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        return await self.transport.send("POST", url + path, body, _HEADERS, timeout_s)

"""HealthProbe: asks a server of any kind whether it is up."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.transport import Transport

PATHS = ("/health", "/openapi.json", "/")
"""What servers have, the most telling first. NeMo Gym's have only the second and third."""
TIMEOUT_S = 5.0
_ABSENT = (404, 405)


@dataclass(frozen=True)
class Health:
    """The result of one probe."""

    up: bool
    detail: str = ""
    """Why it is not up, or what is unusual about it."""
    silent: bool = False
    """It accepts connections but does not respond in time: it may be busy."""


class HealthProbe:
    """Probes one server. It remembers which path the server has, so that later probes take one request."""

    def __init__(self, transport: Transport, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self._transport = transport
        self._timeout_s = timeout_s
        self._paths: tuple[str, ...] = PATHS

    async def probe(self) -> Health:
        """Ask the server. Never raises a Failure."""
        for path in self._paths:
            try:
                response = await self._transport.send("GET", self.url + path, b"", {}, self._timeout_s)
            except Failure as failure:
                return Health(False, failure.problem.detail, silent=failure.kind is FailureKind.TIMEOUT)
            if response.status in _ABSENT:
                continue
            if response.status >= 500:
                return Health(False, f"status {response.status} at {self.url}{path}")
            self._paths = (path,)
            if response.status >= 400:
                return Health(True, f"reachable, but {path} responds with status {response.status}")
            return Health(True)
        if len(self._paths) == 1:  # another program may listen there now
            self._paths = PATHS
            return await self.probe()
        return Health(True, f"reachable, but its state is unknown: it has none of {', '.join(PATHS)}")

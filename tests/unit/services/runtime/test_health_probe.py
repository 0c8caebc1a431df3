from __future__ import annotations

from collections.abc import Mapping

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.foreign_launcher import HealthProbe


class Server(HttpTransport):
    def __init__(self, statuses: Mapping[str, int | Failure]) -> None:
        super().__init__()
        self.statuses = dict(statuses)
        self.paths: list[str] = []

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> HttpResponse:
        path = url.removeprefix("http://x")
        self.paths.append(path)
        status = self.statuses.get(path, 404)
        if isinstance(status, Failure):
            raise status
        return HttpResponse(status, {}, b"")


@pytest.mark.parametrize(
    ("statuses", "up", "detail"),
    [
        *(({path: 200}, True, "") for path in ("/health", "/openapi.json", "/")),
        ({}, True, "unknown"),
        ({"/health": 503}, False, "status 503 at http://x/health"),
        ({"/health": 401}, True, "status 401"),
        ({"/health": Failure(FailureKind.UNREACHABLE, "why")}, False, "why"),
        ({"/health": Failure(FailureKind.TIMEOUT, "why")}, False, "why"),
    ],
)
async def test_a_server_is_up_if_it_responds_at_any_of_the_usual_paths(
    statuses: Mapping[str, int | Failure], up: bool, detail: str
) -> None:
    health = await HealthProbe(Server(statuses), "http://x").probe()
    assert (health.up, bool(health.detail)) == (up, bool(detail)) and detail in health.detail
    assert health.silent == (getattr(statuses.get("/health"), "kind", None) is FailureKind.TIMEOUT)


async def test_later_probes_take_one_request() -> None:
    server = Server({"/": 200})
    probe = HealthProbe(server, "http://x")
    await probe.probe()
    server.paths.clear()
    assert (await probe.probe()).up and server.paths == ["/"]


async def test_a_server_that_was_replaced_by_another_one_is_still_found() -> None:
    server = Server({"/health": 200})
    probe = HealthProbe(server, "http://x")
    await probe.probe()
    server.statuses = {"/": 200}
    assert (await probe.probe()).up

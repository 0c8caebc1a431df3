from __future__ import annotations

from collections.abc import Mapping

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.transport import HttpResponse, HttpTransport
from rollyard.services.runtime.foreign_launcher import HealthProbe


class Server(HttpTransport):
    """Responds with the status of each path; an exception is raised."""

    def __init__(self, statuses: Mapping[str, int | Failure]) -> None:
        super().__init__()
        self.statuses = dict(statuses)
        self.paths: list[str] = []

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        path = url.removeprefix("http://x")
        self.paths.append(path)
        status = self.statuses.get(path, 404)
        if isinstance(status, Failure):
            raise status
        return HttpResponse(status, {}, b"")


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/"])
async def test_a_server_is_up_if_it_has_any_of_the_usual_paths(path: str) -> None:
    health = await HealthProbe(Server({path: 200}), "http://x").probe()
    assert health.up and not health.detail


async def test_a_server_with_none_of_them_is_reachable_but_unknown() -> None:
    health = await HealthProbe(Server({}), "http://x").probe()
    assert health.up and "unknown" in health.detail


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


async def test_a_server_that_reports_an_error_is_not_up() -> None:
    health = await HealthProbe(Server({"/health": 503}), "http://x").probe()
    assert not health.up and "503" in health.detail and "http://x/health" in health.detail


async def test_a_server_that_requires_a_login_is_reachable() -> None:
    health = await HealthProbe(Server({"/health": 401}), "http://x").probe()
    assert health.up and "status 401" in health.detail


@pytest.mark.parametrize(("kind", "silent"), [(FailureKind.UNREACHABLE, False), (FailureKind.TIMEOUT, True)])
async def test_a_server_that_gives_no_response_is_down_or_silent(kind: FailureKind, silent: bool) -> None:
    health = await HealthProbe(Server({"/health": Failure(kind, "why")}), "http://x").probe()
    assert (health.up, health.detail, health.silent) == (False, "why", silent)

"""A server on a real socket: disconnects, many requests at once, registration with a head, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import FailureKind
from rollyard.records.run_types import Keys
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.head.server import Head
from rollyard.services.http.client import AddressBook
from rollyard.services.http.listener import bind
from rollyard.services.http.otel import Telemetry
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import KEYS, failure_of, http_transport, listening, make_client, make_server, send
from tests.support.waiting import until


class BlockingHandler:
    def __init__(self) -> None:
        self.started = 0
        self.release = asyncio.Event()

    async def __call__(self, call: RawRequest) -> bytes:
        self.started += 1
        await self.release.wait()
        return b"{}"


async def test_hundreds_of_concurrent_requests_are_all_answered() -> None:
    handler = BlockingHandler()
    server = make_server(routes={"/w": handler})
    async with listening(server) as hosted, http_transport() as transport:
        calls = [asyncio.create_task(send(transport, hosted.url + "/w")) for _ in range(400)]
        await until(lambda: handler.started == 400)
        handler.release.set()
        assert {response.status for response in await asyncio.gather(*calls)} == {200}


async def test_connections_have_tcp_nodelay_on_asyncios_own_event_loop() -> None:
    with bind("127.0.0.1", 0) as sock:
        server = await asyncio.start_server(lambda reader, writer: accepted.set_result(writer), sock=sock)
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        _, client = await asyncio.open_connection(*sock.getsockname())
        writer = await accepted
        assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        client.close()
        server.close()


async def test_a_server_bound_to_ipv6_answers_at_its_url() -> None:
    try:
        bind("::1", 0).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listening(make_server(), "::1") as hosted, http_transport() as transport:
        assert (await send(transport, hosted.url + "/health", b"", "GET")).status == 200


@contextlib.asynccontextmanager
async def listening_head(
    keys: Keys = KEYS, specs: Sequence[ServerSpec] = ()
) -> AsyncIterator[tuple[HostedServer, ServerRegistry]]:
    async with http_transport() as transport:
        registry = ServerRegistry(keys.run_id, specs, {})
        context = Context("head", keys, make_client({}, transport))
        async with listening(Head(ServerSettings(), context, registry, RunConfig((), {}))) as hosted:
            yield hosted, registry


async def test_a_server_that_is_not_in_the_config_cannot_join() -> None:
    async with listening_head() as (head, registry), http_transport() as transport:
        registry_client = RegistryClient(transport, head.url, KEYS)
        hosted = HostedServer(make_server("unknown"), bind("127.0.0.1", 0))
        failure = await failure_of(hosted.join("unknown#1", registry_client, AddressBook(registry_client.directory)))
        await hosted.stop()
        assert failure.kind is FailureKind.UNKNOWN_SERVER and failure.problem.server == "head"
        assert registry.instances() == []


class LoadingServer(Server):
    def __init__(self) -> None:
        super().__init__(ServerSettings(), Context("env", KEYS, make_client({}, HttpTransport())))
        self.loaded = asyncio.Event()
        self.route("/w", self.work)

    async def work(self, call: RawRequest) -> bytes:
        return b"{}"

    async def start(self) -> None:
        await self.loaded.wait()


async def test_a_server_that_is_still_starting_refuses_calls_to_the_address_it_had_before() -> None:
    settings = ServerSettings()
    spec = ServerSpec("env", "resources_servers", "env", Path(), settings, raw={}, isolated=False)
    async with listening_head(specs=[spec]) as (head, registry), http_transport() as transport:
        registry.expect("env#2")
        registry_client, server = RegistryClient(transport, head.url, KEYS), LoadingServer()
        hosted = HostedServer(server, bind("127.0.0.1", 0))
        joining = asyncio.create_task(hosted.join("env#2", registry_client, AddressBook(registry_client.directory)))
        await until(lambda: bool(registry.directory().instances))
        refused = await send(transport, hosted.url + "/w")
        assert (refused.status, refused.headers["content-type"]) == (421, "application/problem+json")
        assert (await send(transport, hosted.url + "/ready", b"", "GET")).status == 503
        server.loaded.set()
        await joining
        assert (await send(transport, hosted.url + "/w")).status == 200
        await hosted.stop()


async def test_an_invalid_directory_from_the_head_is_a_failure() -> None:
    server = make_server("head")

    @server.app.get("/directory")
    async def directory() -> dict[str, int]:
        return {"hello": 1}

    async with listening(server) as hosted, http_transport() as transport:
        failure = await failure_of(RegistryClient(transport, hosted.url, KEYS).directory())
    assert failure.kind is FailureKind.MALFORMED_ANSWER


class MeasuredServer(Server):
    """A server whose metrics are exported to itself."""

    def __init__(self) -> None:
        telemetry = Telemetry("env", None, self, 60.0)  # type: ignore[arg-type]
        super().__init__(ServerSettings(), Context("env", KEYS, make_client({}, HttpTransport()), telemetry=telemetry))
        self.stopped = False
        self.exported_after_the_stop: list[bool] = []

    async def stop(self) -> None:
        self.stopped = True

    def export(self, data: Any) -> None:
        self.exported_after_the_stop.append(self.stopped)


async def test_a_server_that_stops_before_its_metrics_are_first_exported_stops_wholly() -> None:
    async with listening(server := MeasuredServer()):
        pass
    assert server.stopped


async def test_the_last_metrics_are_exported_once_all_else_has_stopped() -> None:
    async with listening(server := MeasuredServer()):
        await asyncio.sleep(0)
    assert server.exported_after_the_stop == [True]

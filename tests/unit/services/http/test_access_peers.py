"""Servers without a token reject connections of other users of the host."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.run_types import AccessRules, Keys
from rollyard.records.types import Json
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import Head
from rollyard.services.http.access import (
    ESTABLISHED,
    FIN_WAIT1,
    LISTEN,
    PEER,
    Access,
    Address,
    KnownHosts,
    Peers,
    ProcNet,
    Socket,
    SocketTable,
    kernel_sockets,
    listener_owner,
    owner,
)
from rollyard.services.http.listener import bind
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import KEYS, http_transport, make_client, make_server
from tests.unit.services.http.raw_requests import request

TIME_WAIT = 6
OTHER = os.geteuid() + 4321


@dataclass
class FakeSocketTable(ProcNet):
    answer: Socket | None
    lookups: int = 0

    def find(self, local: Address, remote: Address) -> Socket | None:
        self.lookups += 1
        return self.answer

    def close(self) -> None:
        """Nothing to release."""


async def response_to(found: Socket | None, keys: Keys = KEYS, *headers: str, **peers: Any) -> tuple[int, Json]:
    """The response of a server to a connection for which the socket table returns `found`."""
    hosted = HostedServer(make_server(keys=keys), bind("127.0.0.1", 0), peers=Peers(FakeSocketTable(found), **peers))
    await hosted.listen()
    try:
        return await request(hosted.url, *headers)
    finally:
        await hosted.stop()


@pytest.mark.parametrize("uid", [os.geteuid(), 0])
async def test_a_connection_of_this_user_or_of_root_is_accepted(uid: int) -> None:
    assert (await response_to(Socket(ESTABLISHED, uid, 7)))[0] == 200


@pytest.mark.parametrize(
    ("found", "reason"),
    [(Socket(ESTABLISHED, OTHER, 7), f"user id {OTHER}"), (None, "cannot be determined")]
    + [(Socket(state, 0, 0), "") for state in (TIME_WAIT, FIN_WAIT1, LISTEN)],
)
async def test_a_connection_of_another_user_or_without_an_owner_is_rejected_with_the_setting_that_allows_it(
    found: Socket | None, reason: str
) -> None:
    status, problem = await response_to(found)
    assert (status, problem["type"]) == (403, "urn:rollyard:forbidden")
    assert reason in problem["detail"] and "ng_run --allow-other-users" in problem["detail"]


async def test_the_overflow_user_id_of_a_user_namespace_is_rejected() -> None:
    assert (await response_to(Socket(ESTABLISHED, os.geteuid(), 7), KEYS, unmapped=os.geteuid()))[0] == 403


async def test_a_connection_that_was_reset_before_the_lookup_is_rejected() -> None:
    access = Access(KnownHosts([]), command="ng_run")
    scope = {"method": "POST", "headers": [(b"host", b"localhost")], "client": None, "state": {PEER: None}}
    assert access.refusal(scope) is not None
    assert access.refusal({**scope, "state": {}}) is None  # a call within this process has no peer


async def test_a_run_that_allows_other_users_shows_its_folder_only_to_its_own_user(tmp_path: Path) -> None:
    keys = Keys(run_id="r1", secret="s", access=AccessRules(other_users=True))
    statuses = []
    for uid in (OTHER, os.geteuid()):
        async with http_transport() as transport:
            context = Context("head", keys, make_client({}, transport))
            head = Head(ServerSettings(), context, ServerRegistry("r1", (), {}), RunConfig((), {}), tmp_path)
            hosted = HostedServer(head, bind("127.0.0.1", 0), peers=Peers(FakeSocketTable(Socket(ESTABLISHED, uid, 7))))
            await hosted.listen()
            statuses.append(await request(hosted.url, line="GET /origin HTTP/1.1"))
            await hosted.stop()
    assert statuses[0][0] == 403 and str(tmp_path) not in str(statuses[0])
    assert statuses[1][0] == 200 and statuses[1][1]["folder"] == str(tmp_path)


async def test_any_user_with_the_run_token_is_accepted() -> None:
    keys = Keys(run_id="r1", secret="s", token="t0ken")
    assert (await response_to(Socket(ESTABLISHED, OTHER, 7), keys, "Authorization: Bearer t0ken"))[0] == 200
    assert (await response_to(Socket(ESTABLISHED, OTHER, 7), keys))[0] == 401


async def test_the_owner_is_looked_up_once_per_connection() -> None:
    table = FakeSocketTable(Socket(ESTABLISHED, 0, 7))
    hosted = HostedServer(make_server(), bind("127.0.0.1", 0), peers=Peers(table))
    await hosted.listen()
    reader, writer = await asyncio.open_connection(*hosted.url.removeprefix("http://").split(":"))
    for _ in range(3):
        writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await hosted.stop()
    assert table.lookups == 1


@contextmanager
def connected(bound: str, reached: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    try:
        listener = socket.create_server((bound, 0), family=family, dualstack_ipv6=bound == "::")
    except (OSError, ValueError):
        pytest.skip("this machine has no IPv6")
    with listener, socket.create_connection((reached, listener.getsockname()[1])) as client:
        served, _ = listener.accept()
        with served:
            yield client, served


def tables() -> list[SocketTable]:
    return [kernel_sockets(), ProcNet()]


@pytest.mark.parametrize(
    ("bound", "reached"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.3"), ("::1", "::1"), ("::", "127.0.0.1")]
)
def test_the_owner_of_the_other_end_of_a_connection_is_found(bound: str, reached: str) -> None:
    for table in tables():
        with closing(table), connected(bound, reached) as (client, served):
            peer_address, local_address = served.getpeername()[:2], served.getsockname()[:2]
            assert owner(table, peer_address, local_address) == os.geteuid()
            assert listener_owner(table, (reached, local_address[1])) == os.geteuid()
            client.shutdown(socket.SHUT_WR)
            assert owner(table, peer_address, local_address) == os.geteuid()
            client.close()
            assert owner(table, peer_address, local_address) is None
            assert (
                owner(table, (peer_address[0], 1), local_address) is None
                and listener_owner(table, (reached, 1)) is None
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open a socket as another user")
async def test_a_real_connection_of_another_user_is_rejected_and_one_of_root_accepted() -> None:
    hosted = HostedServer(make_server(), bind("127.0.0.1", 0))
    await hosted.listen()
    try:
        for uid, status in ((65534, b"403"), (0, b"200")):
            os.seteuid(uid)
            try:
                sock = socket.socket()
            finally:
                os.seteuid(0)
            sock.connect(("127.0.0.1", int(hosted.url.rpartition(":")[2])))
            reader, writer = await asyncio.open_connection(sock=sock)
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()).split()[1] == status
            writer.close()
    finally:
        await hosted.stop()

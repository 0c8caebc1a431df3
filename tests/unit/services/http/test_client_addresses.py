"""Which server a client reaches when servers change their addresses."""

from __future__ import annotations

from collections.abc import Iterator

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Directory
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient, Session
from tests.support.asgi_requests import echo
from tests.support.fixtures import KEYS, failure_kind_of, http_transport, listening, make_server
from tests.support.waiting import deadline_s


async def test_another_server_of_the_run_on_the_old_port_rejects_the_call() -> None:
    async with http_transport() as transport, listening(make_server("model", routes={"/echo": echo})) as hosted:

        async def directory() -> Directory:
            return Directory(run_id=KEYS.run_id, servers={"agent": [hosted.url]}, families={}, settings={})

        client = ServerClient(transport, KEYS, AddressBook(directory), RetryPolicy(0.1, 0.01))
        assert await failure_kind_of(client.post("agent", "/echo", b"{}", deadline_s())) is FailureKind.WRONG_RUN
        session = Session(client, "agent")
        assert await failure_kind_of(session.post("/echo", b"{}", deadline_s())) is FailureKind.WRONG_RUN
        assert hosted.server.requests == 2


async def test_a_known_address_stays_in_use_while_the_head_is_unreachable() -> None:
    async with http_transport() as transport, listening(make_server("echo", routes={"/echo": echo})) as hosted:
        directories = iter([Directory(run_id=KEYS.run_id, servers={"echo": [hosted.url]}, families={}, settings={})])

        async def directory() -> Directory:
            for known in directories:
                return known
            raise Failure(FailureKind.UNREACHABLE, "no head", server="head")

        book = AddressBook(directory)
        client = ServerClient(transport, KEYS, book, RetryPolicy(0.1, 0.01))
        await client.post("echo", "/echo", b"{}", deadline_s())
        book.mark_stale()
        assert (await client.post("echo", "/echo", b'{"a":1}', deadline_s())).status == 200


async def test_a_call_waits_for_a_starting_server_up_to_its_start_timeout() -> None:
    async with http_transport() as transport, listening(make_server("model", routes={"/echo": echo})) as hosted:
        directories: Iterator[list[str]] = iter([[]] * 4)

        async def directory() -> Directory:
            urls: list[str] = next(directories, [hosted.url])
            limits = {"model": deadline_s()}
            return Directory(
                run_id=KEYS.run_id, servers={"model": urls}, families={}, start_timeouts_s=limits, settings={}
            )

        client = ServerClient(transport, KEYS, AddressBook(directory), RetryPolicy(0.0, 0.001))
        assert (await client.post("model", "/echo", b"{}", deadline_s())).status == 200

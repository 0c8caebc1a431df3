from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from rollyard.records.errors import FailureKind
from rollyard.services.http import connection_pool
from rollyard.services.http.connection_pool import HttpLimits, ResponseReader
from rollyard.services.http.request import Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport, LocalTransport
from tests.support.fixtures import failure_kind_of, failure_of, http, http_transport, peer, send, unused_url
from tests.support.waiting import until


async def test_a_complete_response_of_any_status_is_returned() -> None:
    async with peer(http(b"no", "503 Busy", None, "x-it: y")) as other, http_transport() as transport:
        response = await send(transport, other.url + "/x")
        assert (response.status, response.body, response.headers["X-It"]) == (503, b"no", "y")


async def test_every_cookie_of_a_response_is_returned() -> None:
    two_cookies = http(b"{}", "200 OK", None, "set-cookie: a=1; Path=/", "set-cookie: b=2")
    async with peer(two_cookies) as other, http_transport() as transport:
        assert (await send(transport, other.url + "/x")).cookies == ("a=1; Path=/", "b=2")


async def test_a_rejected_connection_is_unreachable() -> None:
    async with http_transport() as transport:
        assert await failure_kind_of(send(transport, unused_url() + "/x")) is FailureKind.UNREACHABLE


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async with http_transport() as transport:
        assert await failure_kind_of(send(transport, "http://no-such-host.invalid:1/x")) is FailureKind.UNREACHABLE


INCOMPLETE = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this"


@pytest.mark.parametrize("response", [None, b"this is not HTTP\r\n\r\n", INCOMPLETE, b"HTTP/1.1 200 OK\r\nconte"])
async def test_a_connection_that_breaks_before_the_response_is_complete_is_lost(response: bytes | None) -> None:
    async with peer(response) as other, http_transport() as transport:
        sending = asyncio.ensure_future(failure_kind_of(send(transport, other.url + "/x")))
        await until(lambda: other.requests)
        if response is not None:
            other.close()
        assert await sending is FailureKind.CONNECTION_LOST
        assert other.requests == 1


@pytest.mark.parametrize("response", [None, b"this is not HTTP\r\n\r\n"])
async def test_a_failure_and_its_connection_are_freed_without_a_garbage_collection(
    response: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[object]] = []

    class Recorded(ResponseReader):
        def __init__(self, limits: HttpLimits) -> None:
            super().__init__(limits)
            made.append(weakref.ref(self))

    monkeypatch.setattr(connection_pool, "ResponseReader", Recorded)
    async with peer(response) as other, http_transport() as transport:
        gc.disable()
        try:
            made.append(weakref.ref(await failure_of(send(transport, other.url + "/x"))))
            await until(lambda: not any(one() for one in made), "they are freed")
            assert len(made) == 2
        finally:
            gc.enable()


@pytest.mark.parametrize("response", [b"", INCOMPLETE])
async def test_an_incomplete_response_is_a_timeout(response: bytes) -> None:
    async with peer(response) as other, http_transport() as transport:
        failure = await failure_of(send(transport, other.url + "/x", timeout_s=1.0))
        assert failure.kind is FailureKind.TIMEOUT and "1 s" in str(failure)


@pytest.mark.parametrize("url", ["http://host:99999/x", "http://[bad/x", "ftp://host/x", "nonsense"])
async def test_an_invalid_address_is_a_failure(url: str) -> None:
    async with http_transport() as transport:
        assert url in str(await failure_of(send(transport, url)))


async def test_a_redirect_is_returned_not_followed() -> None:
    async with peer(http(b"", "307 Temporary Redirect", None, "location: /y")) as other, http_transport() as transport:
        assert (await send(transport, other.url + "/x")).status == 307
        assert other.requests == 1


def local_transport(app: Any) -> LocalTransport:
    transport = LocalTransport(HttpTransport())
    transport.mount("http://local:1", app)
    return transport


async def describing(scope: Scope, receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    description = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode() + body
    headers = [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"x-it", dict(scope["headers"])[b"x-sent"])]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": description, "more_body": True})
    await send({"type": "http.response.body", "body": b"!"})


async def test_the_local_transport_passes_on_method_path_query_headers_body_and_cookies() -> None:
    transport = local_transport(describing)
    response = await send(transport, "http://local:1/x?q=1", b"hello", headers={"X-Sent": "v"})
    assert (response.status, response.body) == (201, b"POST /x q=1 hello!")
    assert response.headers["x-it"] == "v" and response.cookies == ("a=1", "b=2")


async def raising(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("an error of the app")


async def failing_midway(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise RuntimeError("an error of the app")


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def sleeping(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("app", [raising, failing_midway, silent])
async def test_the_local_transport_reports_an_incomplete_response_as_a_lost_connection(app: Any) -> None:
    assert await failure_kind_of(send(local_transport(app), "http://local:1/x")) is FailureKind.CONNECTION_LOST


async def test_the_local_transport_reports_a_late_app_as_a_timeout() -> None:
    assert (
        await failure_kind_of(send(local_transport(sleeping), "http://local:1/x", timeout_s=0.02))
        is FailureKind.TIMEOUT
    )


async def test_the_local_transport_sends_other_addresses_to_the_network() -> None:
    transport = local_transport(describing)
    async with peer(http(b"remote")) as other:
        assert (await send(transport, other.url + "/x")).body == b"remote"
        assert await failure_kind_of(send(transport, unused_url() + "/x")) is FailureKind.UNREACHABLE
        await transport.close()

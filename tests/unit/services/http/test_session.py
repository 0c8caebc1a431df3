from __future__ import annotations

from collections.abc import Mapping

import pytest

from rollyard.records.errors import FailureKind
from rollyard.services.http.client import Session
from tests.support.fixtures import failure_kind_of, failure_of, http, http_transport, make_client, peer
from tests.support.waiting import deadline_s


async def test_a_session_stays_on_its_first_instance() -> None:
    async with peer(http()) as first, peer(http()) as second, http_transport() as transport:
        client = make_client({"s": [first.url, second.url]}, transport)
        session = Session(client, "s")
        for _ in range(4):
            await session.post("/x", b"{}", deadline_s())
            await client.post("s", "/y", b"{}", deadline_s())
        on_first = sum(b"POST /x" in seen for seen in first.seen)
        assert on_first in (0, 4)


def sets(*cookies: str) -> bytes:
    return http(b"{}", "200 OK", "r1", *(f"set-cookie: {cookie}" for cookie in cookies))


async def sent_after(
    *responses: bytes, cookie: str = "", first_headers: Mapping[str, str] | None = None
) -> list[bytes]:
    """The requests of a session: one for each response, and one more."""
    async with peer(*responses, http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s", cookie)
        await session.post("/x", b"{}", deadline_s(), first_headers)
        for _ in responses:
            await session.post("/x", b"{}", deadline_s())
        return list(other.seen)


async def test_a_session_sends_its_cookies_back_unchanged() -> None:
    first, second = await sent_after(sets("id=a.b=c; Path=/; HttpOnly", 'other="q"; Path=/'))
    assert b"cookie" not in first.lower() and b'cookie: id=a.b=c; other="q"\r\n' in second


async def test_a_cookie_set_again_replaces_its_old_value_and_keeps_the_others() -> None:
    assert b"cookie: a=3; b=2\r\n" in (await sent_after(sets("a=1", "b=2"), sets("a=3")))[2]


EXPIRED = ["Max-Age=0", "max-age=-1", "MAX-AGE=000", "Max-Age=0; Expires=Fri, 31 Dec 9999 23:59:59 GMT"]
EXPIRED += ["expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=0; Path=/", "Expires=Thu, 01-Jan-1970 00:00:00 GMT"]
EXPIRED += ["Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=soon"]
KEPT = ["", "Max-Age=60", "Max-Age=" + "9" * 5000, "Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "Max-Age=--5"]
KEPT += ["Max-Age=\xb2", "Max-Age=", "Expires=never", "Expires=", "Expires=Fri, 31 Dec 9999 23:59:59 -2359"]
KEPT += ["Expires=Thu, 99 Jan 1970 00:00:00 GMT", "Path=/; Secure; SameSite=None; Domain=example.org"]


@pytest.mark.parametrize("attributes", [*EXPIRED, *KEPT])
async def test_only_a_cookie_that_says_in_a_known_form_that_it_has_expired_is_deleted(attributes: str) -> None:
    _, second, third = await sent_after(sets("a=1"), sets(f"a=1; {attributes}"))
    assert b"cookie: a=1" in second and (b"cookie: a=1" in third) == (attributes in KEPT)


@pytest.mark.parametrize("value", ["", "a=b=c", '"quoted value"', "a,b", "%2F+~", "caf\xe9", "\u65e5\u672c", "a b"])
async def test_the_value_of_a_cookie_is_sent_back_as_it_came(value: str) -> None:
    assert f"cookie: a={value}\r\n".encode() in (await sent_after(sets(f"a={value}; Path=/")))[1]


async def test_a_session_may_start_with_the_callers_cookie_and_headers_of_one_call_are_not_sent_again() -> None:
    sent = await sent_after(http(), cookie="id=1", first_headers={"x-once": "1"})
    assert [b"x-once" in one for one in sent] == [True, False] and all(b"cookie: id=1\r\n" in one for one in sent)


async def test_a_session_whose_instance_is_removed_is_lost_and_does_not_move() -> None:
    async with peer(http()) as third, http_transport() as transport:
        async with peer(http()) as other:
            servers = {"s": [other.url]}
            session = Session(make_client(lambda: servers, transport), "s")
            await session.post("/x", b"{}", deadline_s())
            servers["s"] = [third.url]
        await transport.close()  # a kept connection would fail differently
        failure = await failure_of(session.post("/x", b"{}", deadline_s()))
        assert failure.kind is FailureKind.SESSION_LOST and failure.problem.server == "s"
        assert third.requests == 0


async def test_a_session_whose_address_now_belongs_to_another_run_is_lost() -> None:
    async with peer(http(), http(b"{}", "200 OK", None)) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        await session.post("/x", b"{}", deadline_s())
        assert await failure_kind_of(session.post("/x", b"{}", deadline_s())) is FailureKind.SESSION_LOST


async def test_a_call_in_a_session_is_never_replayed() -> None:
    async with peer(http(), None, http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        await session.post("/x", b"{}", deadline_s())
        assert await failure_kind_of(session.post("/x", b"{}", deadline_s())) is FailureKind.CONNECTION_LOST
        assert other.requests == 2


async def test_send_returns_an_error_response_and_post_raises_it() -> None:
    async with peer(http(b"no", "500 Oh")) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        assert (await session.send("/x", b"{}", deadline_s())).status == 500
        assert await failure_kind_of(session.post("/x", b"{}", deadline_s())) is FailureKind.SERVER_ERROR

from __future__ import annotations

from rollyard.services.errors import FailureKind
from rollyard.services.http.session import Session
from tests.support.fixtures import failure_kind_of, failure_of, http, http_transport, make_client, peer


async def test_a_session_stays_on_its_first_instance() -> None:
    async with peer(http()) as first, peer(http()) as second, http_transport() as transport:
        client = make_client({"s": [first.url, second.url]}, transport)
        session = Session(client, "s")
        for _ in range(4):
            await session.post("/x", b"{}", 5.0)
            await client.post("s", "/y", b"{}", 5.0)
        on_first = sum(b"POST /x" in seen for seen in first.seen)
        assert on_first in (0, 4)


async def test_a_session_sends_its_cookies_back_unchanged() -> None:
    first = http(b"{}", "200 OK", "r1", "set-cookie: id=a.b=c; Path=/; HttpOnly", 'set-cookie: other="q"; Path=/')
    async with peer(first, http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        await session.post("/seed_session", b"{}", 5.0)
        await session.post("/x", b"{}", 5.0)
        assert b"cookie" not in other.seen[0].lower()
        assert b'cookie: id=a.b=c; other="q"\r\n' in other.seen[1]


async def test_a_cookie_set_again_replaces_its_old_value_and_keeps_the_others() -> None:
    first = http(b"{}", "200 OK", "r1", "set-cookie: a=1", "set-cookie: b=2")
    second = http(b"{}", "200 OK", "r1", "set-cookie: a=3")
    async with peer(first, second, http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        for _ in range(3):
            await session.post("/x", b"{}", 5.0)
        assert b"cookie: a=3; b=2\r\n" in other.seen[2]


async def test_a_session_may_start_with_the_callers_cookie() -> None:
    async with peer(http()) as other, http_transport() as transport:
        await Session(make_client({"s": [other.url]}, transport), "s", "id=1").post("/x", b"{}", 5.0)
        assert b"cookie: id=1\r\n" in other.seen[0]


async def test_headers_of_one_call_are_not_sent_again() -> None:
    async with peer(http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s", "id=1")
        await session.post("/x", b"{}", 5.0, {"x-once": "1"})
        await session.post("/x", b"{}", 5.0)
        assert [b"x-once" in seen for seen in other.seen] == [True, False]


async def test_a_session_is_open_once_an_instance_has_answered() -> None:
    async with peer(http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        assert not session.opened
        await session.post("/x", b"{}", 5.0)
        assert session.opened


async def test_a_session_whose_instance_is_removed_is_lost_and_does_not_move() -> None:
    async with peer(http()) as third, http_transport() as transport:
        async with peer(http()) as other:
            servers = {"s": [other.url]}
            session = Session(make_client(lambda: servers, transport), "s")
            await session.post("/x", b"{}", 5.0)
            servers["s"] = [third.url]
        await transport.close()  # a kept connection would fail differently
        failure = await failure_of(session.post("/x", b"{}", 5.0))
        assert failure.kind is FailureKind.SESSION_LOST and failure.problem.server == "s"
        assert third.requests == 0


async def test_a_session_whose_address_now_belongs_to_another_run_is_lost() -> None:
    async with peer(http(), http(b"{}", "200 OK", None)) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        await session.post("/x", b"{}", 5.0)
        assert await failure_kind_of(session.post("/x", b"{}", 5.0)) is FailureKind.SESSION_LOST


async def test_a_call_in_a_session_is_never_replayed() -> None:
    async with peer(http(), None, http()) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        await session.post("/x", b"{}", 5.0)
        assert await failure_kind_of(session.post("/x", b"{}", 5.0)) is FailureKind.CONNECTION_LOST
        assert other.requests == 2


async def test_send_returns_an_error_response_and_post_raises_it() -> None:
    async with peer(http(b"no", "500 Oh")) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        assert (await session.send("/x", b"{}", 5.0)).status == 500
        assert await failure_kind_of(session.post("/x", b"{}", 5.0)) is FailureKind.SERVER_ERROR


async def test_a_cookie_that_the_server_deletes_is_not_sent_again() -> None:
    first = http(b"{}", "200 OK", "r1", "set-cookie: a=1", "set-cookie: b=2; Max-Age=60", "set-cookie: c=3")
    gone = ("set-cookie: a=; Max-Age=0", "set-cookie: b=x; expires=Thu, 01 Jan 1970 00:00:00 GMT", "set-cookie: ;")
    last = ("set-cookie: c=3; Max-Age=-1; Expires=Fri, 01 Jan 2999 00:00:00 GMT", "set-cookie: d=4; expires=never")
    script = [first, http(b"{}", "200 OK", "r1", *gone), http(b"{}", "200 OK", "r1", *last), http()]
    async with peer(*script) as other, http_transport() as transport:
        session = Session(make_client({"s": [other.url]}, transport), "s")
        for _ in range(4):
            await session.post("/x", b"{}", 5.0)
        assert [b"cookie: a=1; b=2; c=3\r\n" in other.seen[1], b"cookie: c=3\r\n" in other.seen[2]] == [True, True]
        assert b"cookie: d=4\r\n" in other.seen[3]

"""Which host names a server accepts: only names that no web page can resolve to it."""

from __future__ import annotations

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import AccessRules, Keys
from rollyard.services.http.access import KnownHosts
from tests.support.asgi_requests import echo
from tests.support.fixtures import listening, make_server
from tests.unit.services.http.raw_requests import request

LOOPBACK = ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:8080"]
LOOPBACK += ["[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:1", "localhost:"]
FOREIGN = ["evil.example", "evil.example:11000", "127.0.0.1.evil.example", "localhost.evil.example", "notlocalhost"]
FOREIGN += ["10.0.0.5", "[2001:db8::1]", "0.0.0.0", "metadata", "127.0.0.1@evil.example", "user@127.0.0.1"]
FOREIGN += ["", " ", "127.0.0.1:11000:1", "::1", "[::1", "[::1]x", "localhost..", ".localhost", "127.1", "0x7f.0.0.1"]
FOREIGN += ["2130706433", "localhost/", "localhost#", "localhost, evil.example", "localhost\\evil.example"]
FOREIGN += ["127.0.0.1:x", "localhost:123456", "[fe80::1%25lo]", "lоcalhost", "localhost\tx", "[localhost]"]


def test_without_a_setting_only_loopback_names_are_known() -> None:
    known = KnownHosts(["127.0.0.1"])
    assert [host for host in LOOPBACK if not known.knows(host.encode())] == []
    assert [host for host in FOREIGN if known.knows(host.encode())] == []


def test_a_configured_name_is_known_in_any_spelling() -> None:
    known = KnownHosts(["Rollouts.Example.org", "fd00::7", "head:11000"])
    assert all(known.knows(host) for host in (b"rollouts.example.org.:8080", b"[FD00:0::7]:1", b"HEAD"))


def test_on_a_public_bind_ip_addresses_are_known_but_foreign_names_are_not() -> None:
    known = KnownHosts([], any_address=True)
    assert known.knows(b"10.0.0.5:1") and known.knows(b"[2001:db8::1]") and not known.knows(b"evil.example")


def test_an_invalid_host_name_in_the_settings_is_an_operator_error() -> None:
    with pytest.raises(OperatorError, match="'http://x/'"):
        KnownHosts(["http://x/"])


async def test_a_server_rejects_every_foreign_name_and_accepts_every_loopback_name() -> None:
    async with listening(make_server()) as hosted:
        assert {(await request(hosted.url, hosts=[host]))[0] for host in LOOPBACK} == {200}
        responses = [await request(hosted.url, hosts=[host]) for host in FOREIGN if host.isascii()]
        assert {status for status, _ in responses} <= {400, 421}
        assert {problem.get("type") for status, problem in responses if status == 421} == {"urn:rollyard:forbidden"}


async def test_two_host_headers_or_none_are_rejected() -> None:
    async with listening(make_server()) as hosted:
        assert (await request(hosted.url, hosts=["localhost", "localhost"]))[0] == 421
        assert (await request(hosted.url, hosts=["localhost", "evil.example"]))[0] == 421
        assert (await request(hosted.url, hosts=[]))[0] == 400
        assert (await request(hosted.url, line="GET /health HTTP/1.0", hosts=[]))[0] == 400


async def test_the_host_of_an_absolute_target_takes_precedence_over_the_header() -> None:
    async with listening(make_server()) as hosted:
        statuses = [
            (await request(hosted.url, line=f"GET {target}/health HTTP/1.1", hosts=[host]))[0]
            for target, host in (
                ("http://evil.example", "localhost"),
                ("http://localhost@evil.example", "localhost"),
                ("HTTP://LOCALHOST", "evil.example"),
            )
        ]
    assert statuses == [421, 421, 200]


async def test_a_name_that_the_run_allows_reaches_its_servers() -> None:
    keys = Keys(run_id="r1", secret="s", access=AccessRules(hosts=("proxy.example.org",)))
    async with listening(make_server(keys=keys)) as hosted:
        assert (await request(hosted.url, hosts=["proxy.example.org"]))[0] == 200


async def test_a_request_with_the_run_token_may_use_any_name() -> None:
    keys = Keys(run_id="r1", secret="s", token="t0ken")
    async with listening(make_server(keys=keys, routes={"/echo": echo})) as hosted:
        authorization = "Authorization: Bearer t0ken"
        assert (await request(hosted.url, authorization, hosts=["head:11000"]))[0] == 200
        assert (await request(hosted.url, hosts=["head:11000"]))[0] == 401

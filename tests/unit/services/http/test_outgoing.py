"""How external endpoints are reached: fallback to the next address of a name, and proxies from the environment."""

from __future__ import annotations

import asyncio
import base64
import socket
from typing import Any

import pytest
from yarl import URL

from rollyard.records.errors import FailureKind
from rollyard.services.http.transport import Proxies, endpoint_transport
from tests.support.fixtures import failure_of, http, http_transport, peer, send, unused_url
from tests.support.waiting import deadline_s
from tests.unit.services.http.raw_peers import respond, tcp_server

ENVIRONMENT = {
    "http_proxy": "http://user:word@proxy.example:3128",
    "HTTPS_PROXY": "proxy.example:3129",
    "NO_PROXY": "internal.example, .corp.example,10.0.0.0/8,[fd00::1],vllm:8000,192.168.1.7:9000 *.lab.example",
}


@pytest.mark.parametrize(
    ("url", "proxied"),
    [
        ("http://api.example/v1", True),
        ("https://api.example/v1", True),
        ("http://internal.example/v1", False),
        ("http://a.internal.example:81/v1", False),
        ("http://notinternal.example/v1", True),
        ("http://INTERNAL.example./v1", False),
        ("http://a.corp.example/v1", False),
        ("http://a.lab.example/v1", False),
        ("http://10.1.2.3:8000/v1", False),
        ("http://11.1.2.3:8000/v1", True),
        ("http://[fd00::1]:8000/v1", False),
        ("http://[fd00::2]:8000/v1", True),
        ("http://vllm:8000/v1", False),
        ("http://vllm:8001/v1", True),
        ("http://192.168.1.7:9000/v1", False),
        ("http://192.168.1.7:9001/v1", True),
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.2:8000/v1", False),
        ("http://[::1]:8000/v1", False),
    ],
)
def test_the_environment_variables_decide_the_proxy_of_an_address(url: str, proxied: bool) -> None:
    found = Proxies.of(ENVIRONMENT).of_address(URL(url))
    scheme = {"http": "http://user:word@proxy.example:3128", "https": "http://proxy.example:3129"}[URL(url).scheme]
    assert found == (URL(scheme) if proxied else None)


def test_lower_case_variables_take_precedence_and_all_proxy_is_the_default() -> None:
    proxies = Proxies.of({"http_proxy": "http://a:1", "HTTP_PROXY": "http://b:1", "ALL_PROXY": "c:1"})
    assert proxies.by_scheme == {"http": "http://a:1", "https": "http://c:1"}


async def test_a_request_through_a_proxy_has_the_full_url_and_the_credentials() -> None:
    async with peer(http(b"through", "200 OK", None)) as proxy:
        transport = endpoint_transport({"http_proxy": proxy.url.replace("http://", "http://user:word@")})
        assert (await send(transport, "http://api.example/v1/x", b"{}")).body == b"through"
        _, chunks = await transport.stream("POST", "http://api.example/v1/x", b"{}", {}, deadline_s())
        assert b"".join([chunk async for chunk in chunks]) == b"through"
        await transport.close()
    for seen in proxy.seen:
        assert seen.startswith(b"POST http://api.example/v1/x HTTP/1.1\r\n")
        assert b"basic " + base64.b64encode(b"user:word").lower() in seen.lower()


@pytest.mark.parametrize("url", ["http://api.example/v1", "https://api.example/v1"])
async def test_an_unreachable_proxy_is_named_without_its_password(url: str) -> None:
    proxy = unused_url().replace("http://", "http://user:s3cret@")
    transport = endpoint_transport({"http_proxy": proxy, "https_proxy": proxy})
    failure = await failure_of(send(transport, url))
    await transport.close()
    assert failure.kind is FailureKind.UNREACHABLE
    assert "proxy" in str(failure) and "s3cret" not in str(failure)


async def test_a_proxy_that_rejects_the_tunnel_is_unreachable() -> None:
    async with tcp_server(respond(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")) as port:
        transport = endpoint_transport({"https_proxy": f"http://127.0.0.1:{port}"})
        failure = await failure_of(send(transport, "https://api.example/v1"))
        await transport.close()
    assert failure.kind is FailureKind.UNREACHABLE and "407" in str(failure)


async def test_a_proxy_of_an_unsupported_kind_is_reported() -> None:
    transport = endpoint_transport({"all_proxy": "socks5://user:s3cret@127.0.0.1:1080"})
    failure = await failure_of(send(transport, "http://api.example/v1"))
    await transport.close()
    assert "socks5://" in str(failure) and "s3cret" not in str(failure)


async def test_servers_of_the_run_are_never_reached_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", unused_url())
    async with peer(http(b"direct")) as other, http_transport() as transport:
        assert (await send(transport, other.url + "/x")).body == b"direct"


def two_addresses(first: tuple[str, int], second: tuple[str, int]) -> Any:
    async def look_up(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (first, second)]

    return look_up


@pytest.mark.parametrize("first", ["refusing", "silent"])
async def test_the_second_address_of_a_name_is_tried_if_the_first_does_not_answer(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unresponsive = socket.socket()
    unresponsive.bind(("127.0.0.1", 0))
    if first == "silent":
        unresponsive.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(unresponsive.getsockname())
    async with peer(http(b"second")) as other, http_transport() as transport:
        reachable = ("127.0.0.1", int(other.url.rpartition(":")[2]))
        monkeypatch.setattr(
            asyncio.get_running_loop(), "getaddrinfo", two_addresses(unresponsive.getsockname(), reachable)
        )
        assert (await send(transport, f"http://engine.example:{reachable[1]}/x")).body == b"second"
    unresponsive.close()
    if first == "silent":
        for client in waiting:
            client.close()

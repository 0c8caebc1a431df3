"""Requests that a web page in the user's browser could send are rejected; requests of clients are accepted."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import aiohttp

from tests.support.asgi_requests import echo
from tests.support.fixtures import listening, make_server
from tests.unit.services.http.raw_requests import JSON, post, request

OTHER_TYPES = ["", "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "json", "text/json"]
OTHER_TYPES += ["multipart/form-data; boundary=x", "text/plain; application/json", "text/plain, application/json"]
OTHER_TYPES += ["application/json, text/plain", "application/octet-stream", "application/jsonx", "Application/JSON/x"]
JSON_TYPES = ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/json ;x=1"]
JSON_TYPES += ["application/x-ndjson", "application/merge-patch+json"]


async def test_a_body_of_a_type_that_needs_no_preflight_is_rejected() -> None:
    async with listening(make_server(routes={"/echo": echo})) as hosted:
        for content_type in OTHER_TYPES:
            status, problem = await post(hosted.url, f"Content-Type: {content_type}")
            assert status == 415 and "-H 'content-type: application/json'" in problem["detail"], content_type


async def test_a_body_without_a_type_or_with_two_types_is_rejected() -> None:
    async with listening(make_server(routes={"/echo": echo})) as hosted:
        assert (await post(hosted.url))[0] == 415
        assert (await post(hosted.url, JSON, "Content-Type: text/plain"))[0] == 415
        chunked = b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(hosted.url).port)
        writer.write(b"POST /echo HTTP/1.1\r\n" + chunked)
        assert b" 415 " in await reader.readline()
        writer.close()


async def test_json_types_of_any_spelling_are_accepted() -> None:
    async with listening(make_server(routes={"/echo": echo})) as hosted:
        assert {(await post(hosted.url, f"Content-Type: {content_type}"))[0] for content_type in JSON_TYPES} == {200}


ORIGINS = ["http://evil.example", "null", "http://127.0.0.1", "https://localhost", "http://127.0.0.1:1", "file://", ""]


async def test_only_the_servers_own_page_may_call_it() -> None:
    async with listening(make_server(routes={"/echo": echo})) as hosted:
        own = f"Origin: {hosted.url}"
        for origin in ORIGINS:
            assert (await post(hosted.url, JSON, f"Origin: {origin}"))[0] == 403
            assert (await request(hosted.url, f"Origin: {origin}"))[0] == 403
            assert (await request(hosted.url, f"Origin: {origin}", line="POST /echo HTTP/1.1"))[0] == 403
        assert (await post(hosted.url, JSON, own, "Origin: http://evil.example"))[0] == 403
        assert (await post(hosted.url, JSON, own, "Sec-Fetch-Site: same-origin"))[0] == 200


async def test_a_request_that_the_browser_marks_as_cross_site_is_rejected() -> None:
    async with listening(make_server()) as hosted:
        for mode in ("no-cors", "navigate"):
            status, _ = await request(hosted.url, "Sec-Fetch-Site: cross-site", f"Sec-Fetch-Mode: {mode}")
            assert status == 403


async def test_a_page_that_the_user_opens_is_served() -> None:
    browser = ("Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document", "Accept: text/html")
    async with listening(make_server()) as hosted:
        port = urlsplit(hosted.url).port
        for path in ("/openapi.json", "/health", "/metrics"):
            response = await request(hosted.url, *browser, line=f"GET {path} HTTP/1.1", hosts=[f"localhost:{port}"])
            assert response[0] == 200


async def test_a_preflight_request_is_denied() -> None:
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    async with listening(make_server(routes={"/echo": echo})) as hosted, aiohttp.ClientSession() as session:
        for origin in ("http://evil.example", hosted.url):
            async with session.options(hosted.url + "/echo", headers={"Origin": origin, **preflight}) as response:
                assert response.status >= 400
                assert not [name for name in response.headers if "access-control" in name.lower()]

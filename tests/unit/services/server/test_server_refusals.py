"""Callers that a server rejects before any route."""

from __future__ import annotations

import pytest

from rollyard.records.run_types import Keys
from tests.support.asgi_requests import call_app, echo, problem
from tests.support.fixtures import make_server


async def test_a_caller_of_another_run_gets_421() -> None:
    error = problem(await call_app(make_server(routes={"/echo": echo}), "/echo", x_rollyard_run="r2"))
    assert (error["status"], error["type"]) == (421, "urn:rollyard:wrong_run")


TOKEN = Keys(run_id="r1", secret="s", token="t0ken")


@pytest.mark.parametrize("path", ["/echo", "/health", "/metrics", "/openapi.json", "/nowhere"])
@pytest.mark.parametrize("authorization", ["", "Bearer no", "Bearer ", "t0ken"])
async def test_every_endpoint_without_the_run_token_is_401(path: str, authorization: str) -> None:
    method = "POST" if path == "/echo" else "GET"
    error = problem(
        await call_app(
            make_server(keys=TOKEN, routes={"/echo": echo}), path, method=method, authorization=authorization
        )
    )
    assert (error["status"], error["type"]) == (401, "urn:rollyard:unauthorized") and "t0ken" not in error["detail"]


async def test_a_probe_without_the_run_token_learns_whether_the_server_is_ready_and_no_more() -> None:
    server = make_server(keys=TOKEN, routes={"/echo": echo})
    response = await call_app(server, "/ready", method="GET")
    assert (response.status, response.body) == (503, b'{"ready":false}')
    assert (await call_app(server, "/ready", method="POST")).status == 401


async def test_a_probe_for_another_run_or_server_is_rejected() -> None:
    server = make_server(keys=TOKEN, routes={"/echo": echo})
    assert (await call_app(server, "/ready", method="GET", x_rollyard_run="r2")).status == 421
    assert (await call_app(server, "/ready", method="GET", x_rollyard_to="another")).status == 421


async def test_a_request_with_the_run_token_is_accepted() -> None:
    server = make_server(keys=TOKEN, routes={"/echo": echo})
    assert (await call_app(server, "/echo", authorization="Bearer t0ken")).status == 200

"""Callers that a server rejects before any route."""

from __future__ import annotations

import pytest

from rollyard.services.run_types import Keys
from tests.support.asgi_requests import call_app, echo, problem
from tests.support.fixtures import make_server


async def test_a_caller_of_another_run_is_answered_421() -> None:
    told = problem(await call_app(make_server(routes={"/echo": echo}), "/echo", x_rollyard_run="r2"))
    assert (told["status"], told["type"]) == (421, "urn:rollyard:wrong_run")


async def test_a_run_header_of_odd_bytes_is_answered_421_too() -> None:
    told = problem(await call_app(make_server(routes={"/echo": echo}), "/echo", x_rollyard_run="\xff"))
    assert told["status"] == 421


TOKEN = Keys(run_id="r1", secret="s", token="t0ken")


@pytest.mark.parametrize("path", ["/echo", "/health", "/ready", "/metrics", "/openapi.json", "/nowhere"])
@pytest.mark.parametrize("authorization", ["", "Bearer no", "Bearer ", "t0ken"])
async def test_every_endpoint_without_the_run_token_is_401(path: str, authorization: str) -> None:
    method = "POST" if path == "/echo" else "GET"
    told = problem(
        await call_app(make_server(keys=TOKEN, routes={"/echo": echo}), path, method=method, authorization=shown)
    )
    assert (told["status"], told["type"]) == (401, "urn:rollyard:unauthorized") and "t0ken" not in told["detail"]


async def test_with_the_run_token_the_answer_is_the_same_as_without_one_set() -> None:
    server = make_server(keys=TOKEN, routes={"/echo": echo})
    assert (await call_app(server, "/echo", authorization="Bearer t0ken")).status == 200

from __future__ import annotations

import logging
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.client import RUN_HEADER
from rollyard.services.http.request import MAX_BODY_BYTES, RawRequest, RawResponse
from rollyard.services.server.app import Server
from rollyard.services.server.openapi import Shape
from tests.support.asgi_requests import call_app, echo, problem
from tests.support.fixtures import KEYS, http_transport, listening, make_server, send


async def test_a_raw_route_returns_its_bytes_and_the_run_header() -> None:
    response = await call_app(make_server(routes={"/echo": echo}), "/echo", {"a": 1})
    assert (response.status, response.body, response.headers[RUN_HEADER]) == (200, b'{"a":1}', KEYS.run_id)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[1]", b"5"])
async def test_a_body_that_is_not_a_json_object_is_a_400_problem_that_names_the_server(body: bytes) -> None:
    error = problem(await call_app(make_server(routes={"/echo": echo}), "/echo", body))
    assert (error["status"], error["server"], error["instance"]) == (400, "echo", "/echo")
    assert error["type"] == "urn:rollyard:bad_request"


async def test_a_path_that_names_a_rollout_has_the_cancellation_and_the_error_format_of_the_route_behind_it() -> None:
    server = make_server(routes={"/echo": echo})
    server.route("/long", echo, cancellable=True)
    server.format_errors("/echo", lambda error: RawResponse(b"converted", error.status))
    for prefix in ("/ng-rollout/1-0", "/ng-rollout/1-0/training-token-capture"):
        assert (server.is_cancellable(f"{prefix}/echo"), server.is_cancellable(f"{prefix}/long")) == (False, True)
        assert (await call_app(server, f"{prefix}/echo", b"{")).body == b"converted"
        refused = await call_app(server, f"{prefix}/echo", **{RUN_HEADER: "another"})  # type: ignore[arg-type]
        assert (refused.status, refused.body) == (421, b"converted")
    assert server.is_cancellable("/ng-rollout/1-0/nothing") is None


async def post_in_chunks(server: Server, chunks: list[bytes], *, end: bool = True) -> tuple[int, int]:
    """The status of the response to a chunked body, and how many chunks the server read."""
    chunks_read, sent = 0, []

    async def receive() -> Any:
        nonlocal chunks_read
        if chunks_read == len(chunks):
            return {"type": "http.disconnect"}
        chunks_read += 1
        more = chunks_read < len(chunks) or not end
        return {"type": "http.request", "body": chunks[chunks_read - 1], "more_body": more}

    async def send_message(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/echo", "headers": [], "query_string": b""}
    await server(scope, receive, send_message)
    return sent[0]["status"], chunks_read


async def test_a_body_in_several_chunks_is_joined() -> None:
    assert await post_in_chunks(make_server(routes={"/echo": echo}), [b'{"a"', b":", b"1}"]) == (200, 3)


async def test_a_body_beyond_the_limit_is_rejected_without_reading_the_rest() -> None:
    chunk = b" " * (1 << 20)
    limit = MAX_BODY_BYTES // len(chunk) + 1
    assert await post_in_chunks(make_server(routes={"/echo": echo}), [chunk] * (limit + 50)) == (413, limit)


@pytest.mark.parametrize("chunks", [[], [b'{"a"']])
async def test_an_incomplete_request_does_not_reach_its_handler(chunks: list[bytes]) -> None:
    calls: list[RawRequest] = []

    async def record(call: RawRequest) -> bytes:
        calls.append(call)
        return b"{}"

    await post_in_chunks(make_server(routes={"/echo": record}), chunks, end=False)
    assert not calls


async def test_an_exception_in_a_handler_is_logged_and_answered_with_a_500_problem_without_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(call: RawRequest) -> bytes:
        raise RuntimeError("an internal error")

    with caplog.at_level(logging.ERROR):
        response = await call_app(make_server(routes={"/x": broken}), "/x")
    error = problem(response)
    assert error["status"] == 500 and "RuntimeError" in error["detail"] and b"Traceback" not in response.body
    assert caplog.records[0].exc_info is not None


class Pair(BaseModel):
    left: int
    right: int


def server_with_fastapi_routes() -> Server:
    server = make_server(routes={"/echo": echo})

    @server.app.get("/broken")
    async def broken() -> Json:
        raise RuntimeError("an internal error")

    @server.app.get("/failing")
    async def failing() -> Json:
        raise Failure(FailureKind.SESSION_LOST, "gone")

    @server.app.put("/pair")
    async def pair(pair: Pair) -> Json:
        return {"sum": pair.left + pair.right}

    return server


@pytest.mark.parametrize(
    ("path", "method", "statuses", "named"),
    [
        ("/failing", "GET", (410,), "urn:rollyard:session_lost"),
        ("/broken", "GET", (500,), "RuntimeError"),
        ("/pair", "PUT", (400, 422), "left"),
    ],
)
async def test_an_error_in_a_fastapi_route_becomes_a_problem(
    path: str, method: str, statuses: tuple[int, ...], named: str
) -> None:
    body = b'{"left": "x"}' if method == "PUT" else b""
    headers = {"content-type": "application/json"}
    async with listening(server_with_fastapi_routes()) as hosted, http_transport() as transport:
        error = problem(await send(transport, hosted.url + path, body, method, headers))
    assert error["status"] in statuses and error["server"] == "echo" and named in str(error)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unknown_path_is_a_404_problem_that_names_the_routes(method: str) -> None:
    error = problem(await call_app(make_server(routes={"/echo": echo}), "/nowhere", method=method))
    assert error["status"] == 404 and "/nowhere" in error["detail"] and "/echo" in error["detail"]


@pytest.mark.parametrize(("path", "method", "allowed"), [("/echo", "GET", "POST"), ("/health", "POST", "GET")])
async def test_a_method_that_a_path_does_not_have_is_a_405_problem_with_those_it_has(
    path: str, method: str, allowed: str
) -> None:
    answer = await call_app(make_server(routes={"/echo": echo}), path, method=method)
    error = problem(answer)
    assert (error["status"], answer.headers["allow"]) == (405, allowed) and f"expected {allowed}" in error["detail"]


async def test_ready_is_503_before_start_and_200_after() -> None:
    server = make_server()
    assert (await call_app(server, "/ready", method="GET")).status == 503
    server.ready = True
    assert (await call_app(server, "/ready", method="GET")).status == 200


async def test_openapi_lists_raw_and_fastapi_routes() -> None:
    schema = orjson.loads((await call_app(server_with_fastapi_routes(), "/openapi.json", b"", "GET")).body)
    assert schema["openapi"].startswith("3.") and {"/echo", "/health", "/ready", "/metrics"} <= schema["paths"].keys()
    assert schema["paths"]["/echo"]["post"]["summary"] == "Say it again."
    assert "200" in schema["paths"]["/echo"]["post"]["responses"]


class Greeting(TypedDict):
    name: str


async def test_openapi_describes_the_shape_of_a_hot_route_and_what_other_paths_take() -> None:
    server = make_server()
    server.route("/greet", echo, shape=Shape(Greeting, list[Greeting]))
    server.route_rest(echo, shapes={"/{anyone}": Shape(Greeting)})
    schema = orjson.loads((await call_app(server, "/openapi.json", b"", "GET")).body)
    greet, anyone = (schema["paths"][path]["post"] for path in ("/greet", "/{anyone}"))
    body = greet["requestBody"]["content"]["application/json"]["schema"]
    answer = greet["responses"]["200"]["content"]["application/json"]["schema"]
    assert (body["required"], answer["items"]) == (["name"], {"$ref": "#/components/schemas/Greeting"})
    assert schema["components"]["schemas"]["Greeting"]["properties"]["name"]["type"] == "string"
    assert anyone["parameters"][0]["name"] == "anyone" and anyone["requestBody"]["content"]


async def test_metrics_count_responses_by_route_and_status() -> None:
    server = make_server(routes={"/echo": echo})
    for body in (b"{}", b"{}", b"["):
        await call_app(server, "/echo", body)
    text = (await call_app(server, "/metrics", b"", "GET")).body.decode()
    assert 'rollyard_requests_total{route="/echo",status="200"} 2.0' in text
    assert 'rollyard_requests_total{route="/echo",status="400"} 1.0' in text
    assert 'rollyard_request_seconds_count{route="/echo"} 3.0' in text


async def test_rejected_callers_are_counted_separately_from_the_routes() -> None:
    server = make_server(routes={"/echo": echo})
    await call_app(server, "/echo", b"{}", x_rollyard_run="another")
    text = (await call_app(server, "/metrics", b"", "GET")).body.decode()
    assert 'rollyard_requests_total{route="refused",status="421"} 1.0' in text
    assert 'rollyard_failures_total{began="here",kind="wrong_run"} 1.0' in text


async def test_a_forwarded_failure_is_counted_as_originating_elsewhere() -> None:
    async def forwarded(call: RawRequest) -> bytes:
        raise Failure(FailureKind.TIMEOUT, "late", server="environment")

    server = make_server(routes={"/echo": forwarded})
    await call_app(server, "/echo")
    text = (await call_app(server, "/metrics", b"", "GET")).body
    assert b'rollyard_failures_total{began="elsewhere",kind="timeout"} 1.0' in text

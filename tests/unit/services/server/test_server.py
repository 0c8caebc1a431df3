from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.client import RUN_HEADER
from rollyard.services.http.request import MAX_BODY_BYTES, RawRequest, RawResponse
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json
from tests.support.asgi_requests import ask, echo, problem
from tests.support.fixtures import KEYS, a_server, listening, network, send, until


async def test_a_hot_route_answers_bytes_and_the_run() -> None:
    answer = await ask(a_server(routes={"/echo": echo}), "/echo", {"a": 1})
    assert (answer.status, answer.body, answer.headers[RUN_HEADER]) == (200, b'{"a":1}', KEYS.run_id)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[1]", b"5"])
async def test_a_body_that_is_no_json_object_is_a_400_problem_that_names_the_server(body: bytes) -> None:
    told = problem(await ask(a_server(routes={"/echo": echo}), "/echo", body))
    assert (told["status"], told["server"], told["instance"]) == (400, "echo", "/echo")
    assert told["type"] == "urn:rollyard:bad_request"


async def posted(server: Server, pieces: list[bytes], *, end: bool = True) -> tuple[int, int]:
    """Status of the answer to a body in pieces, and how many pieces were taken."""
    taken, sent = 0, []

    async def receive() -> Any:
        nonlocal taken
        if taken == len(pieces):
            return {"type": "http.disconnect"}
        taken += 1
        more = taken < len(pieces) or not end
        return {"type": "http.request", "body": pieces[taken - 1], "more_body": more}

    async def answered(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/echo", "headers": [], "query_string": b""}
    await server(scope, receive, answered)
    return sent[0]["status"], taken


async def test_a_body_in_pieces_is_put_together() -> None:
    assert await posted(a_server(routes={"/echo": echo}), [b'{"a"', b":", b"1}"]) == (200, 3)


async def test_a_body_beyond_the_limit_is_rejected_without_reading_on() -> None:
    piece = b" " * (1 << 20)
    too_many = MAX_BODY_BYTES // len(piece) + 1
    assert await posted(a_server(routes={"/echo": echo}), [piece] * (too_many + 50)) == (413, too_many)


@pytest.mark.parametrize("pieces", [[], [b'{"a"']])
async def test_a_caller_that_hangs_up_within_its_request_starts_no_work(pieces: list[bytes]) -> None:
    worked: list[RawRequest] = []

    async def work(call: RawRequest) -> bytes:
        worked.append(call)
        return b"{}"

    await posted(a_server(routes={"/echo": work}), pieces, end=False)
    assert not worked


async def test_an_exception_in_a_handler_is_a_500_problem_without_traceback_but_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(call: RawRequest) -> bytes:
        raise RuntimeError("a mistake")

    with caplog.at_level(logging.ERROR):
        answer = await ask(a_server(routes={"/x": broken}), "/x")
    told = problem(answer)
    assert told["status"] == 500 and "RuntimeError: a mistake" in told["detail"] and b"Traceback" not in answer.body
    assert caplog.records[0].exc_info is not None


async def test_a_failure_keeps_its_server_and_upstream_status() -> None:
    async def failing(call: RawRequest) -> bytes:
        raise Failure(FailureKind.UPSTREAM_ERROR, "down", server="engine", upstream_status=503, instance="/v1")

    told = problem(await ask(a_server(routes={"/x": failing}), "/x"))
    assert (told["status"], told["server"], told["upstream_status"], told["instance"]) == (502, "engine", 503, "/v1")


class Pair(BaseModel):
    left: int
    right: int


def with_app_routes() -> Server:
    server = a_server(routes={"/echo": echo})

    @server.app.get("/broken")
    async def broken() -> Json:
        raise RuntimeError("a mistake")

    @server.app.get("/failing")
    async def failing() -> Json:
        raise Failure(FailureKind.SESSION_LOST, "gone")

    @server.app.put("/pair")
    async def pair(pair: Pair) -> Json:
        return {"sum": pair.left + pair.right}

    return server


async def test_a_failure_in_an_ordinary_route_is_its_problem() -> None:
    assert problem(await ask(with_app_routes(), "/failing", method="GET"))["type"] == "urn:rollyard:session_lost"


async def test_an_exception_in_an_ordinary_route_is_a_500_problem() -> None:
    async with listening(with_app_routes()) as hosted, network() as transport:
        told = problem(await send(transport, hosted.url + "/broken", b"", "GET"))
    assert (told["status"], told["server"]) == (500, "echo")


async def test_a_body_that_does_not_fit_an_ordinary_route_is_a_problem() -> None:
    sent = {"left": "x"}
    told = problem(await ask(with_app_routes(), "/pair", sent, "PUT", content_type="application/json"))
    assert told["status"] in (400, 422) and "left" in told["detail"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unknown_path_is_a_404_problem_that_lists_the_routes(method: str) -> None:
    told = problem(await ask(a_server(routes={"/echo": echo}), "/nowhere", method=method))
    assert told["status"] == 404 and "/nowhere" in told["detail"] and "/echo" in told["detail"]


async def test_ready_is_503_before_start_and_200_after() -> None:
    server = a_server()
    assert (await ask(server, "/ready", method="GET")).status == 503
    server.ready = True
    assert (await ask(server, "/ready", method="GET")).status == 200


async def test_openapi_holds_hot_and_ordinary_routes() -> None:
    schema = orjson.loads((await ask(with_app_routes(), "/openapi.json", b"", "GET")).body)
    assert schema["openapi"].startswith("3.") and {"/echo", "/health", "/ready", "/metrics"} <= schema["paths"].keys()
    assert schema["paths"]["/echo"]["post"]["summary"] == "Say it again."
    assert "200" in schema["paths"]["/echo"]["post"]["responses"]


async def test_metrics_count_answers_by_route_and_status() -> None:
    server = a_server(routes={"/echo": echo})
    for body in (b"{}", b"{}", b"["):
        await ask(server, "/echo", body)
    text = (await ask(server, "/metrics", b"", "GET")).body.decode()
    assert 'rollyard_requests_total{route="/echo",status="200"} 2.0' in text
    assert 'rollyard_requests_total{route="/echo",status="400"} 1.0' in text
    assert 'rollyard_request_seconds_count{route="/echo"} 3.0' in text


async def test_a_rejected_caller_is_counted_apart_from_the_routes() -> None:
    server = a_server(routes={"/echo": echo})
    await ask(server, "/echo", b"{}", x_rollyard_run="another")
    text = (await ask(server, "/metrics", b"", "GET")).body.decode()
    assert 'rollyard_requests_total{route="refused",status="421"} 1.0' in text
    assert 'rollyard_failures_total{began="here",kind="wrong_run"} 1.0' in text


async def test_a_forwarded_failure_is_counted_as_originating_elsewhere() -> None:
    async def passed_on(call: RawRequest) -> bytes:
        raise Failure(FailureKind.TIMEOUT, "late", server="environment")

    server = a_server(routes={"/echo": passed_on})
    await ask(server, "/echo")
    assert (
        b'rollyard_failures_total{began="elsewhere",kind="timeout"} 1.0'
        in (await ask(server, "/metrics", b"", "GET")).body
    )


async def test_two_servers_of_one_process_count_apart() -> None:
    one, two = a_server(routes={"/echo": echo}), a_server("other", routes={"/echo": echo})
    await ask(one, "/echo")
    assert b'status="200"' not in (await ask(two, "/metrics", b"", "GET")).body


async def test_a_streaming_reply_arrives_piece_by_piece() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"data: %d\n\n" % number

    async def streaming(call: RawRequest) -> RawResponse:
        return RawResponse(stream=pieces(), content_type=b"text/event-stream")

    async with listening(a_server(routes={"/s": streaming})) as hosted, network() as transport:
        answer = await send(transport, hosted.url + "/s")
    assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert answer.headers["content-type"] == "text/event-stream" and answer.headers[RUN_HEADER] == "r1"


async def test_requests_and_requests_in_flight_are_counted() -> None:
    go = asyncio.Event()

    async def waiting(call: RawRequest) -> bytes:
        await go.wait()
        return b"{}"

    server = a_server(routes={"/w": waiting})
    calls = [asyncio.create_task(ask(server, "/w")) for _ in range(3)]
    await until(lambda: server.in_flight == 3)
    go.set()
    await asyncio.gather(*calls)
    assert (server.in_flight, server.requests) == (0, 3)


async def test_a_subclass_may_call_its_own_attributes_as_it_likes() -> None:
    names = ("answer", "serve", "send", "failed", "refusal", "routes", "rest", "token", "meters", "run_header")

    class Mine(Server):
        def __init__(self, settings: ServerSettings, context: Context) -> None:
            super().__init__(settings, context)
            for name in names:
                setattr(self, f"_{name}", b"mine")
            self.route("/echo", echo)

    mine = Mine(ServerSettings(), a_server().context)
    assert (await ask(mine, "/echo", {"a": 1})).body == b'{"a":1}'
    assert (await ask(mine, "/nowhere")).status == 404

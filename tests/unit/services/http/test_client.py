from __future__ import annotations

import asyncio
from collections.abc import Iterator

import orjson
import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Keys
from rollyard.services.http.client import RUN_HEADER, RetryPolicy
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpTransport, LocalTransport
from tests.support.fixtures import (
    KEYS,
    failure_kind_of,
    failure_of,
    http,
    http_transport,
    listening,
    make_client,
    make_server,
    peer,
    unused_url,
)
from tests.support.waiting import deadline_s, until

PROBLEM = "content-type: application/problem+json"


async def test_only_a_failed_connection_attempt_is_retried_at_another_address() -> None:
    async with peer(http(b"ok")) as other, http_transport() as transport:
        urls = iter([unused_url(), unused_url()])
        client = make_client(lambda: {"s": [next(urls, other.url)]}, transport, RetryPolicy(deadline_s(), 0.01))
        assert (await client.post("s", "/x", b"{}", deadline_s())).body == b"ok"
        assert other.requests == 1


async def test_retries_end_after_the_wait_time_of_the_policy() -> None:
    async with http_transport() as transport:
        client = make_client({"s": [unused_url()]}, transport, RetryPolicy(0.1, 0.01))
        async with asyncio.timeout(deadline_s()):
            failure = await failure_of(client.post("s", "/x", b"{}", 10 * deadline_s()))
        assert failure.kind is FailureKind.UNREACHABLE and failure.problem.server == "s"


async def test_retries_end_with_a_nearer_deadline_which_the_message_names() -> None:
    async with http_transport() as transport:
        client = make_client({"s": []}, transport, RetryPolicy(deadline_s(), 0.01))
        failure = await failure_of(client.post("s", "/x", b"{}", 0.05))
        assert failure.kind is FailureKind.UNREACHABLE and "within 0.0" in failure.problem.detail


@pytest.mark.parametrize("response", [None, http(b"no", "503 Busy"), http(b"no", "500 Oh")])
async def test_a_post_that_the_server_may_have_handled_is_never_replayed(response: bytes | None) -> None:
    async with peer(response, http(b"again")) as other, http_transport() as transport:
        client = make_client({"s": [other.url]}, transport, RetryPolicy(deadline_s(), 0.01))
        assert (await failure_of(client.post("s", "/x", b"{}", deadline_s()))).problem.server == "s"
        assert other.requests == 1


async def test_a_post_whose_deadline_passed_is_never_replayed() -> None:
    async with peer(b"", http(b"again")) as other, http_transport() as transport:
        client = make_client({"s": [other.url]}, transport, RetryPolicy(deadline_s(), 0.01))
        assert await failure_kind_of(client.post("s", "/x", b"{}", 1.0)) is FailureKind.TIMEOUT
        assert other.requests == 1


@pytest.mark.parametrize("run", [None, "r2", ""])
async def test_a_response_of_another_run_is_the_failure_wrong_run(run: str | None) -> None:
    async with peer(http(b"hello", "200 OK", run)) as other, http_transport() as transport:
        failure = await failure_of(make_client({"s": [other.url]}, transport).post("s", "/x", b"{}", deadline_s()))
        assert failure.kind is FailureKind.WRONG_RUN and other.url in str(failure)


async def test_a_response_of_another_run_refreshes_the_directory() -> None:
    async with peer(http(b"", "200 OK", None)) as other_run, peer(http(b"ok")) as other, http_transport() as transport:
        urls = iter([other_run.url])
        client = make_client(lambda: {"s": [next(urls, other.url)]}, transport)
        await failure_of(client.post("s", "/x", b"{}", deadline_s()))
        assert (await client.post("s", "/x", b"{}", deadline_s())).body == b"ok"


async def test_every_call_carries_the_run_and_the_token() -> None:
    async with peer(http()) as other, http_transport() as transport:
        keys = Keys(run_id=KEYS.run_id, secret="never sent", token="t0ken")
        await make_client({"s": [other.url]}, transport, keys=keys).post("s", "/x", b"{}", deadline_s())
        sent = other.seen[0].lower()
        assert f"{RUN_HEADER}: r1".encode() in sent and b"authorization: bearer t0ken" in sent
        assert b"never sent" not in sent


async def test_a_problem_is_forwarded_unchanged() -> None:
    origin = Failure(
        FailureKind.RATE_LIMITED,
        "slow down",
        server="policy",
        status=429,
        upstream_status=429,
        instance="/v1/responses",
    )
    async with http_transport() as transport:

        async def failing(call: RawRequest) -> bytes:
            raise origin

        async with listening(make_server("far", routes={"/far": failing})) as far:
            client = make_client({"far": [far.url]}, transport)

            async def forward(call: RawRequest) -> bytes:
                return (await client.post("far", "/far", b"{}", deadline_s())).body

            async with listening(make_server("near", routes={"/near": forward})) as near:
                failure = await failure_of(
                    make_client({"near": [near.url]}, transport).post("near", "/near", b"{}", deadline_s())
                )
    assert failure.problem == origin.problem


async def test_unknown_members_of_a_problem_are_forwarded() -> None:
    body = orjson.dumps({"type": "urn:x:y", "status": 409, "detail": "d", "server": "far", "balance": 30})
    async with peer(http(body, "409 Conflict", "r1", PROBLEM)) as other, http_transport() as transport:
        failure = await failure_of(make_client({"s": [other.url]}, transport).post("s", "/x", b"{}", deadline_s()))
    assert failure.problem.model_dump()["balance"] == 30


@pytest.mark.parametrize("body", [b"{}", b'{"detail": "no status"}', b"not JSON", b"[]", b'{"status": "x"}'])
async def test_an_invalid_problem_becomes_a_failure_with_the_status_of_the_response(body: bytes) -> None:
    async with peer(http(body, "418 Teapot", "r1", PROBLEM)) as other, http_transport() as transport:
        failure = await failure_of(make_client({"s": [other.url]}, transport).post("s", "/x", b"{}", deadline_s()))
    assert failure.problem.server == "s" and "418" in str(failure.problem)


async def test_an_error_without_a_problem_names_server_status_and_body() -> None:
    async with peer(http(b"out of order", "500 Oh")) as other, http_transport() as transport:
        failure = await failure_of(make_client({"s": [other.url]}, transport).post("s", "/x", b"{}", deadline_s()))
    assert failure.problem.server == "s" and "500" in str(failure) and "out of order" in str(failure)


async def test_an_unknown_server_is_rejected_with_the_nearest_name() -> None:
    client = make_client({"policy_model": [], "environment": []}, LocalTransport(HttpTransport()))
    failure = await failure_of(client.post("polcy_model", "/x", b"{}", deadline_s()))
    assert failure.kind is FailureKind.UNKNOWN_SERVER and "did you mean 'policy_model'?" in str(failure)


async def test_a_call_waits_for_a_server_that_becomes_ready_later() -> None:
    async with peer(http(b"ok")) as other, http_transport() as transport:
        directories: Iterator[list[str]] = iter([[], [], []])
        client = make_client(lambda: {"s": next(directories, [other.url])}, transport, RetryPolicy(deadline_s(), 0.01))
        assert (await client.post("s", "/x", b"{}", deadline_s())).body == b"ok"


async def test_the_least_busy_replica_is_chosen() -> None:
    async with peer(b"") as busy, peer(http(b"free")) as free, http_transport() as transport:
        client = make_client({"s": [busy.url, free.url]}, transport)
        waiting = asyncio.create_task(client.send(busy.url, "/x", b"{}", deadline_s()))
        await until(lambda: busy.requests)
        assert [(await client.post("s", "/x", b"{}", deadline_s())).body for _ in range(3)] == [b"free"] * 3
        waiting.cancel()


async def test_equally_busy_replicas_take_turns() -> None:
    async with peer(http()) as first, peer(http()) as second, http_transport() as transport:
        client = make_client({"s": [first.url, second.url]}, transport)
        for _ in range(10):
            await client.post("s", "/x", b"{}", deadline_s())
        assert min(first.requests, second.requests) >= 2


async def test_concurrent_callers_share_one_directory_request() -> None:
    async with peer(http()) as other, http_transport() as transport:
        requests: list[int] = []

        def directory() -> dict[str, list[str]]:
            requests.append(1)
            return {"s": [other.url]}

        client = make_client(directory, transport)
        await asyncio.gather(*(client.post("s", "/x", b"{}", deadline_s()) for _ in range(20)))
        assert len(requests) == 1

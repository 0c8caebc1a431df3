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


Response = bytes | None
"""What a peer sends; None: it closes the connection."""


async def failure_after(*responses: Response, timeout_s: float | None = None) -> Failure:
    """Return the failure of a POST that a peer receives once, and answers with the first of these responses."""
    async with peer(*responses) as other, http_transport() as transport:
        client = make_client({"s": [other.url]}, transport, RetryPolicy(deadline_s(), 0.01))
        failure = await failure_of(client.post("s", "/x", b"{}", timeout_s or deadline_s()))
        assert other.requests == 1 and failure.problem.server == "s"
        return failure


async def test_only_a_failed_connection_attempt_is_retried_at_another_address() -> None:
    async with peer(http(b"ok")) as other, http_transport() as transport:
        urls = iter([unused_url(), unused_url()])
        client = make_client(lambda: {"s": [next(urls, other.url)]}, transport, RetryPolicy(deadline_s(), 0.01))
        assert (await client.post("s", "/x", b"{}", deadline_s())).body == b"ok"
        assert other.requests == 1


async def test_retries_end_after_the_wait_time_of_the_policy_or_at_a_nearer_deadline() -> None:
    async with http_transport() as transport, asyncio.timeout(deadline_s()):
        client = make_client({"s": [unused_url()]}, transport, RetryPolicy(0.1, 0.01))
        failure = await failure_of(client.post("s", "/x", b"{}", 10 * deadline_s()))
        assert failure.kind is FailureKind.UNREACHABLE and failure.problem.server == "s"
        client = make_client({"s": []}, transport, RetryPolicy(deadline_s(), 0.01))
        failure = await failure_of(client.post("s", "/x", b"{}", 0.05))
        assert failure.kind is FailureKind.UNREACHABLE and "within 0.0" in failure.problem.detail


@pytest.mark.parametrize("response", [None, http(b"no", "503 Busy"), http(b"no", "500 Oh"), b""])
async def test_a_post_that_the_server_may_have_handled_is_never_replayed(response: Response) -> None:
    failure = await failure_after(response, http(b"again"), timeout_s=1.0)
    assert (failure.kind is FailureKind.TIMEOUT) == (response == b"")


@pytest.mark.parametrize("run", [None, "r2", ""])
async def test_a_response_of_another_run_is_the_failure_wrong_run(run: str | None) -> None:
    failure = await failure_after(http(b"hello", "200 OK", run))
    assert failure.kind is FailureKind.WRONG_RUN and "http://127.0.0.1:" in str(failure)


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
        *(FailureKind.RATE_LIMITED, "slow down"), server="policy", status=429, upstream_status=429, instance="/v1/x"
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
    body = orjson.dumps({"type": "urn:x:y", "status": 409, "detail": "d", "server": "s", "balance": 30})
    assert (await failure_after(http(body, "409 Conflict", "r1", PROBLEM))).problem.model_dump()["balance"] == 30


@pytest.mark.parametrize(
    "body", [b"{}", b'{"detail": "no status"}', b"out of order", b"[]", b'{"status": "x"}'], ids=str
)
@pytest.mark.parametrize("headers", [[], [PROBLEM]], ids=str)
async def test_an_error_without_a_valid_problem_becomes_a_failure_with_status_and_body(
    body: bytes, headers: list[str]
) -> None:
    failure = await failure_after(http(body, "418 Teapot", "r1", *headers))
    assert "418" in str(failure.problem) and (headers or body.decode() in str(failure))


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

"""A pool of endpoints: which one a call goes to, and when an episode stays with its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream import replicas as module
from rollyard.responses_api_models.upstream.replicas import COOL_DOWNS, Affinity, Endpoint, Replicas
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.transport import LocalTransport
from rollyard.services.server.app import Server
from tests.support.scripted_engine import COMPLETION, Step, engine, model_server
from tests.support.token_clients import CALL_TURN, TEXT_TURN, EpisodeClient, open_episode, tool_output, user_message
from tests.support.token_engine import TokenEngine

ONE, TWO, THREE = (f"http://engine{number}/v1" for number in (1, 2, 3))


A, B, C = Affinity("a"), Affinity("b"), Affinity("c")
CACHE = Affinity("a", binding=False)
PATH = "/chat/completions"


async def chosen_url(pool: Replicas, affinity: Affinity | None = None) -> str:
    return (await pool.choose(affinity)).url


async def first_call(pool: Replicas, affinity: Affinity) -> Endpoint:
    endpoint = await pool.choose(affinity)
    pool.answered(endpoint, affinity, PATH)
    return endpoint


def endpoint_of(pool: Replicas, url: str) -> Endpoint:
    return pool._endpoints[url]


def fail(pool: Replicas, url: str) -> None:
    endpoint_of(pool, url).fail(PATH, 0.0)


async def session_lost(pool: Replicas, affinity: Affinity) -> str:
    with pytest.raises(Failure) as caught:
        await pool.choose(affinity)
    assert caught.value.kind is FailureKind.SESSION_LOST
    assert not caught.value.terminal
    return caught.value.problem.detail


async def test_a_first_call_goes_to_the_least_busy_endpoint_in_turn_among_equals() -> None:
    pool = Replicas([ONE, TWO, THREE])
    one, two = endpoint_of(pool, ONE), endpoint_of(pool, TWO)
    with one.busy(), one.busy(), two.busy():
        assert await chosen_url(pool) == THREE
    assert len({await chosen_url(pool) for _ in range(3)}) == 3


async def test_a_failed_endpoint_is_chosen_last_or_if_there_is_no_other() -> None:
    pool = Replicas([ONE, TWO])
    fail(pool, ONE)
    assert [await chosen_url(pool) for _ in range(3)] == [TWO, TWO, TWO]
    pool.remove(TWO)
    assert await chosen_url(pool) == ONE


async def test_a_success_on_the_path_that_failed_ends_a_cool_down() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    fail(pool, ONE)
    one.succeed("/tokenize")
    assert {await chosen_url(pool) for _ in range(4)} == {TWO}
    one.succeed(PATH)
    assert {await chosen_url(pool) for _ in range(4)} == {ONE, TWO}


async def test_after_a_cool_down_one_call_probes_and_the_others_go_elsewhere() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    fail(pool, ONE)
    one.cooling_until = 0.0
    assert await chosen_url(pool) == ONE
    with one.busy():
        assert {await chosen_url(pool) for _ in range(4)} == {TWO}
    assert await chosen_url(pool) == ONE


def test_each_failed_probe_doubles_the_cool_down_up_to_a_limit() -> None:
    endpoint = Endpoint(ONE)
    durations = []
    for _ in range(20):
        endpoint.cooling_until = 0.0
        endpoint.fail(PATH, endpoint.cooling_since)
        durations.append(round(endpoint.cooling_until - endpoint.cooling_since))
    assert durations[:4] == [1, 2, 4, 8]
    assert durations[-1] == COOL_DOWNS.longest_pause_s


async def test_an_episode_without_an_answer_is_not_lost_with_its_engine() -> None:
    pool = Replicas([ONE, TWO])
    first = await chosen_url(pool, A)
    pool.remove(first)
    assert await chosen_url(pool, A) != first


async def test_a_new_engine_at_the_same_address_does_not_continue_its_episodes() -> None:
    pool = Replicas([ONE])
    await first_call(pool, A)
    pool.remove(ONE)
    pool.add(ONE)
    await session_lost(pool, A)
    assert await chosen_url(pool, A) == ONE


async def test_a_call_keeps_waiting_when_a_new_engine_is_removed_again() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(chosen_url(pool, A))
    await asyncio.sleep(0)
    pool.add(ONE)
    pool.remove(ONE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not call.done()
    pool.add(TWO)
    assert await call == TWO


async def test_the_wait_ends_with_the_reason_why_no_engine_is_up() -> None:
    pool = Replicas(wait_s=0.01, why_none=lambda: "loading the model")
    with pytest.raises(Failure, match="loading the model") as caught:
        await pool.choose(A)
    assert caught.value.kind is FailureKind.UNREACHABLE


async def test_beyond_the_limit_the_least_recently_used_episode_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODES", 2)
    pool = Replicas([ONE])
    for affinity in (A, B, A, C):
        one = await first_call(pool, affinity)
    assert [pool.binds(affinity, one) for affinity in (A, B, C)] == [True, False, True]


async def test_a_preference_is_not_lost_with_its_endpoint() -> None:
    pool = Replicas([ONE, TWO])
    first = await first_call(pool, CACHE)
    assert not pool.binds(CACHE, first)
    pool.remove(first.url)
    assert await chosen_url(pool, CACHE) != first.url


async def test_calls_with_one_shared_preference_are_spread_over_the_endpoints() -> None:
    pool = Replicas([ONE, TWO, THREE])
    with contextlib.ExitStack() as calls:
        for _ in range(60):
            calls.enter_context((await first_call(pool, CACHE)).busy())
        busy = pool.in_flight
    assert max(busy.values()) <= 2 * min(busy.values()) + module.SLACK + 1


@pytest.mark.parametrize(
    ("reported", "accepted"),
    [
        (["m", "other", "m"], [True, False, True]),
        (["alias"] * 4, [False, True, True, True]),  # a gateway renames the model
        ([ONE, TWO, THREE, ONE, TWO], [False, False, True, True, True]),  # each endpoint has its own name for it
        *(([name], [True]) for name in ("org/m", "M", "m-2026-08-07", "m:free", "m@1")),
    ],
)
def test_an_endpoint_that_serves_another_model_than_the_others_is_detected(
    reported: list[str], accepted: list[bool]
) -> None:
    pool = Replicas([ONE, TWO, THREE])
    endpoints = itertools.cycle(endpoint_of(pool, url) for url in (ONE, TWO, THREE))
    assert [pool.answers_as(next(endpoints), name, "m") for name in reported] == accepted


async def test_metrics_report_in_flight_calls_and_failures_of_each_engine_without_passwords() -> None:
    pool = Replicas(["http://me:secret@engine1:8000/v1", TWO])
    fail(pool, TWO)
    with endpoint_of(pool, "http://me:secret@engine1:8000/v1").busy():
        found = {(s.name, s.labels["engine"]): s.value for metric in pool.collect() for s in metric.samples}
    assert found == {
        ("rollyard_engine_in_flight", "engine1:8000/v1"): 1,
        ("rollyard_engine_in_flight", "engine2/v1"): 0,
        ("rollyard_engine_shunned", "engine1:8000/v1"): 0,
        ("rollyard_engine_shunned", "engine2/v1"): 1,
    }


SETTINGS: Json = {"logprobs_mode": "processed_logprobs"}


def session_header(episode: str) -> Json:
    return {"x-session-id": episode}


def two_engines() -> tuple[TokenEngine, TokenEngine]:
    return TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN])


async def first_response(client: EpisodeClient, episode: str) -> Json:
    status, response = await client.send("/v1/responses", {"input": "go"}, session_header(episode))
    assert status == 200, response
    return response


async def later_call(client: EpisodeClient, episode: str) -> tuple[int, Json]:
    return await client.send(
        "/v1/responses", {"input": [user_message("go"), user_message("on")]}, session_header(episode)
    )


async def test_all_requests_of_an_episode_go_to_the_engine_of_its_first_call() -> None:
    one, other = two_engines()
    async with open_episode(one, other, **SETTINGS) as client:
        item = await client.ask(headers=session_header("a"))
        for number in range(2):
            await first_response(client, f"between{number}")
            item = await client.ask(tool_output(item), headers=session_header("a"))
    counts = [[headers["x-session-id"] for headers in engine.headers].count("a") for engine in (one, other)]
    assert sorted(map(bool, counts)) == [False, True]
    assert max(counts) >= 3 and one.requests and other.requests


async def test_an_episode_whose_engine_died_is_lost_and_its_next_attempt_uses_another_engine() -> None:
    one, other = two_engines()
    async with open_episode(one, other, **SETTINGS) as client:
        await first_response(client, "a")
        dead, alive = (one, other) if one.requests else (other, one)
        dead.dead = True
        status, problem = await later_call(client, "a")
        assert (status, problem["type"]) == (410, "urn:rollyard:session_lost")
        assert not alive.requests
        await first_response(client, "a")
        status, _ = await later_call(client, "a")
    assert (status, alive.turns) == (200, 2)


async def test_a_single_dead_engine_is_unreachable_until_it_returns() -> None:
    """There is no other engine: once it is back, the episode continues."""
    engine = TokenEngine([TEXT_TURN])
    async with open_episode(engine, max_attempts=2, **SETTINGS) as client:
        await first_response(client, "a")
        engine.dead = True
        status, problem = await later_call(client, "a")
        assert (status, problem["type"]) == (503, "urn:rollyard:unreachable")
        engine.dead = False
        assert (await later_call(client, "a"))[0] == 200


async def test_concurrent_first_calls_of_an_episode_avoid_a_dead_engine_together() -> None:
    one, other = two_engines()
    one.dead = True
    async with open_episode(one, other, **SETTINGS) as client:
        for number in range(4):
            answers = await asyncio.gather(*(first_response(client, f"episode{number}") for _ in range(3)))
            assert len(answers) == 3
    assert other.requests


async def test_an_episode_whose_engine_keeps_failing_is_lost_and_restarts_on_another() -> None:
    async with engine(COMPLETION, Step(status=500)) as bad, engine() as good:
        settings = {"base_url": [bad.url, good.url], "max_attempts": 9}
        async with model_server(VllmModel, **settings) as server:
            first = await _status_of_call(server, "a")
            later = [await _status_of_call(server, "a") for _ in range(2)]
    assert (first, later) == (200, [410, 200])
    assert len(bad.requests) == 1 + 3


async def _status_of_call(server: Server, episode: str) -> int:
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    answer = await local.send("POST", "http://policy/v1/responses", b'{"input": "hi"}', session_header(episode), 30.0)
    return answer.status

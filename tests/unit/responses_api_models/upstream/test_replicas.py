"""The choice of an engine: an episode stays on its first engine and is lost with it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.responses_api_models.upstream import replicas as module
from rollyard.responses_api_models.upstream.endpoint import MAX_COOL_DOWN_S, Endpoint
from rollyard.responses_api_models.upstream.replicas import Affinity, Replicas

ONE, TWO, THREE = (f"http://engine{number}/v1" for number in (1, 2, 3))


A, B, C = Affinity("a"), Affinity("b"), Affinity("c")
CACHE = Affinity("a", binding=False)
PATH = "/chat/completions"


async def chosen_url(pool: Replicas, affinity: Affinity | None = None) -> str:
    return (await pool.choose(affinity)).url


async def first_call(pool: Replicas, affinity: Affinity) -> Endpoint:
    """The endpoint that answered the episode's first call."""
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


async def test_an_episode_stays_on_its_first_endpoint_however_busy_that_is() -> None:
    pool = Replicas([ONE, TWO])
    first = await first_call(pool, A)
    with first.busy(), first.busy():
        assert await pool.choose(A) is first
        assert await pool.choose(B) is not first


async def test_a_first_call_goes_to_the_least_busy_endpoint_in_turn_among_equals() -> None:
    pool = Replicas([ONE, TWO, THREE])
    one, two = endpoint_of(pool, ONE), endpoint_of(pool, TWO)
    with one.busy(), one.busy(), two.busy():
        assert await chosen_url(pool) == THREE
    assert len({await chosen_url(pool) for _ in range(3)}) == 3


async def test_calls_are_counted_while_they_run_even_if_they_fail() -> None:
    pool = Replicas([ONE, TWO])
    with pytest.raises(ValueError, match="no"), endpoint_of(pool, ONE).busy():
        assert pool.in_flight == {ONE: 1, TWO: 0}
        raise ValueError("no")
    assert pool.in_flight == {ONE: 0, TWO: 0}


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
    assert durations[-1] == MAX_COOL_DOWN_S


def test_a_burst_of_failures_is_one_cool_down() -> None:
    endpoint = Endpoint(ONE)
    for _ in range(50):
        endpoint.fail(PATH, 0.0)
    assert endpoint.cool_downs == 1
    assert endpoint.is_down


async def test_an_endpoint_is_chosen_even_if_all_have_failed() -> None:
    pool = Replicas([ONE, TWO])
    fail(pool, ONE)
    fail(pool, TWO)
    assert await chosen_url(pool) in pool.urls


async def test_an_episode_is_lost_with_its_engine_and_may_start_again_elsewhere() -> None:
    pool = Replicas([ONE, TWO])
    pool.remove((await first_call(pool, A)).url)
    assert "has exited" in await session_lost(pool, A)
    assert await chosen_url(pool, A) in pool.urls


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


async def test_adding_a_known_address_changes_nothing() -> None:
    pool = Replicas([ONE])
    first = await first_call(pool, A)
    with first.busy():
        pool.add(ONE)
        assert pool.in_flight == {ONE: 1}
    assert await pool.choose(A) is first


async def test_a_call_that_outlives_its_engine_does_not_affect_the_counts() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    with one.busy():
        pool.remove(ONE)
        with one.busy():
            assert pool.urls == [TWO]
        pool.add(ONE)
    assert pool.in_flight == {TWO: 0, ONE: 0}
    assert {await chosen_url(pool) for _ in range(2)} == {ONE, TWO}


async def test_a_call_waits_while_no_engine_is_up() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(chosen_url(pool, A))
    await asyncio.sleep(0)
    assert not call.done()
    pool.add(ONE)
    assert await call == ONE


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


async def test_an_episode_whose_engine_is_gone_does_not_wait_for_another() -> None:
    pool = Replicas([ONE], wait_s=30)
    await first_call(pool, A)
    pool.remove(ONE)
    await session_lost(pool, A)


async def test_beyond_the_limit_the_least_recently_used_episode_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODES", 2)
    pool = Replicas([ONE])
    for affinity in (A, B, A, C):
        one = await first_call(pool, affinity)
    assert [pool.binds(affinity, one) for affinity in (A, B, C)] == [True, False, True]


async def test_calls_without_an_episode_are_never_lost() -> None:
    pool = Replicas([ONE, TWO])
    first = await pool.choose()
    pool.answered(first, None, PATH)
    assert not pool.binds(None, first)
    pool.remove(first.url)
    assert await chosen_url(pool) in pool.urls


async def test_a_preferred_endpoint_is_used_while_it_works() -> None:
    pool = Replicas([ONE, TWO])
    first = await first_call(pool, CACHE)
    with first.busy():
        assert await pool.choose(CACHE) is first


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


def test_an_endpoint_that_serves_another_model_than_the_others_is_detected() -> None:
    pool = Replicas([ONE, TWO, THREE])
    one, two, three = (endpoint_of(pool, url) for url in (ONE, TWO, THREE))
    assert pool.answers_as(one, "m", "m")
    assert not pool.answers_as(two, "other", "m")
    assert pool.answers_as(three, "m", "m")


def test_a_pool_that_reports_another_model_name_is_accepted() -> None:
    pool = Replicas([ONE, TWO, THREE])
    accepted = [pool.answers_as(endpoint_of(pool, url), "alias", "m") for url in (ONE, TWO, THREE, ONE)]
    assert accepted == [False, True, True, True]


def test_endpoints_that_each_report_a_different_model_name_are_accepted() -> None:
    pool = Replicas([ONE, TWO, THREE])
    accepted = [pool.answers_as(endpoint_of(pool, url), url, "m") for url in (ONE, TWO, THREE, ONE, TWO)]
    assert accepted == [False, False, True, True, True]


@pytest.mark.parametrize("found", ["org/m", "M", "m-2026-08-07", "m:free", "m@1"])
def test_prefixes_and_suffixes_of_hosted_model_names_are_accepted(found: str) -> None:
    pool = Replicas([ONE, TWO, THREE])
    assert pool.answers_as(endpoint_of(pool, ONE), found, "m")


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

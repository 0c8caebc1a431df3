"""Which engine a call goes to: an episode stays where it began, and is lost with its engine."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from rollyard.responses_api_models.upstream import replicas as module
from rollyard.responses_api_models.upstream.endpoint import LONGEST_COOL_DOWN_S, Endpoint
from rollyard.responses_api_models.upstream.replicas import Affinity, Replicas
from rollyard.services.errors import Failure, FailureKind

ONE, TWO, THREE = (f"http://engine{number}/v1" for number in (1, 2, 3))


A, B, C = Affinity("a"), Affinity("b"), Affinity("c")
CACHE = Affinity("a", binding=False)
PATH = "/chat/completions"


async def where(pool: Replicas, affinity: Affinity | None = None) -> str:
    return (await pool.choose(affinity)).url


async def begun(pool: Replicas, affinity: Affinity) -> Endpoint:
    """Where the first call of the episode was answered."""
    endpoint = await pool.choose(affinity)
    pool.answered(endpoint, affinity, PATH)
    return endpoint


def endpoint_of(pool: Replicas, url: str) -> Endpoint:
    return pool._endpoints[url]


def fail(pool: Replicas, url: str) -> None:
    endpoint_of(pool, url).fail(PATH, 0.0)


async def lost(pool: Replicas, affinity: Affinity) -> str:
    with pytest.raises(Failure) as caught:
        await pool.choose(affinity)
    assert caught.value.kind is FailureKind.SESSION_LOST
    assert not caught.value.terminal
    return caught.value.problem.detail


async def test_an_episode_stays_where_its_first_call_went_however_busy_that_is() -> None:
    pool = Replicas([ONE, TWO])
    first = await begun(pool, A)
    with first.busy(), first.busy():
        assert await pool.choose(A) is first
        assert await pool.choose(B) is not first


async def test_a_first_call_goes_to_the_least_busy_and_equally_busy_ones_take_turns() -> None:
    pool = Replicas([ONE, TWO, THREE])
    one, two = endpoint_of(pool, ONE), endpoint_of(pool, TWO)
    with one.busy(), one.busy(), two.busy():
        assert await where(pool) == THREE
    assert len({await where(pool) for _ in range(3)}) == 3


async def test_calls_are_counted_while_they_last_even_when_they_fail() -> None:
    pool = Replicas([ONE, TWO])
    with pytest.raises(ValueError, match="no"), endpoint_of(pool, ONE).busy():
        assert pool.in_flight == {ONE: 1, TWO: 0}
        raise ValueError("no")
    assert pool.in_flight == {ONE: 0, TWO: 0}


async def test_an_endpoint_that_failed_comes_last_and_is_taken_when_there_is_no_other() -> None:
    pool = Replicas([ONE, TWO])
    fail(pool, ONE)
    assert [await where(pool) for _ in range(3)] == [TWO, TWO, TWO]
    pool.remove(TWO)
    assert await where(pool) == ONE


async def test_a_success_where_it_failed_ends_a_cool_down_at_once() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    fail(pool, ONE)
    one.succeed("/tokenize")
    assert {await where(pool) for _ in range(4)} == {TWO}
    one.succeed(PATH)
    assert {await where(pool) for _ in range(4)} == {ONE, TWO}


async def test_after_a_cool_down_one_call_probes_and_the_others_go_elsewhere() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    fail(pool, ONE)
    one.cooling_until = 0.0
    assert await where(pool) == ONE
    with one.busy():
        assert {await where(pool) for _ in range(4)} == {TWO}
    assert await where(pool) == ONE


def test_each_failed_probe_doubles_the_cool_down_up_to_a_limit() -> None:
    endpoint = Endpoint(ONE)
    lengths = []
    for _ in range(20):
        endpoint.cooling_until = 0.0
        endpoint.fail(PATH, endpoint.cooling_since)
        lengths.append(round(endpoint.cooling_until - endpoint.cooling_since))
    assert lengths[:4] == [1, 2, 4, 8]
    assert lengths[-1] == LONGEST_COOL_DOWN_S


def test_a_burst_of_failures_is_one_cool_down() -> None:
    endpoint = Endpoint(ONE)
    for _ in range(50):
        endpoint.fail(PATH, 0.0)
    assert endpoint.cool_downs == 1
    assert endpoint.is_down


async def test_an_endpoint_is_never_left_out_when_all_fail() -> None:
    pool = Replicas([ONE, TWO])
    fail(pool, ONE)
    fail(pool, TWO)
    assert await where(pool) in pool.urls


async def test_an_episode_is_lost_with_its_engine_and_may_begin_again_elsewhere() -> None:
    pool = Replicas([ONE, TWO])
    pool.remove((await begun(pool, A)).url)
    assert "has exited" in await lost(pool, A)
    assert await where(pool, A) in pool.urls


async def test_an_episode_in_which_nothing_was_answered_is_not_lost_with_its_engine() -> None:
    pool = Replicas([ONE, TWO])
    first = await where(pool, A)
    pool.remove(first)
    assert await where(pool, A) != first


async def test_an_engine_that_came_back_at_the_same_address_is_another() -> None:
    pool = Replicas([ONE])
    await begun(pool, A)
    pool.remove(ONE)
    pool.add(ONE)
    await lost(pool, A)
    assert await where(pool, A) == ONE


async def test_adding_an_address_that_is_there_loses_nothing() -> None:
    pool = Replicas([ONE])
    first = await begun(pool, A)
    with first.busy():
        pool.add(ONE)
        assert pool.in_flight == {ONE: 1}
    assert await pool.choose(A) is first


async def test_a_call_that_outlives_its_engine_brings_the_address_neither_back_nor_below_zero() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    with one.busy():
        pool.remove(ONE)
        with one.busy():
            assert pool.urls == [TWO]
        pool.add(ONE)
    assert pool.in_flight == {TWO: 0, ONE: 0}
    assert {await where(pool) for _ in range(2)} == {ONE, TWO}


async def test_a_call_waits_while_no_engine_is_up() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(where(pool, A))
    await asyncio.sleep(0)
    assert not call.done()
    pool.add(ONE)
    assert await call == ONE


async def test_a_call_waits_on_when_the_engine_that_came_is_gone_again() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(where(pool, A))
    await asyncio.sleep(0)
    pool.add(ONE)
    pool.remove(ONE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not call.done()
    pool.add(TWO)
    assert await call == TWO


async def test_waiting_ends_with_the_reason_why_there_is_none() -> None:
    pool = Replicas(wait_s=0.01, why_none=lambda: "loading the model")
    with pytest.raises(Failure, match="loading the model") as caught:
        await pool.choose(A)
    assert caught.value.kind is FailureKind.UNREACHABLE


async def test_an_episode_whose_engine_is_gone_does_not_wait_for_another() -> None:
    pool = Replicas([ONE], wait_s=30)
    await begun(pool, A)
    pool.remove(ONE)
    await lost(pool, A)


async def test_of_too_many_episodes_the_longest_unused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODES", 2)
    pool = Replicas([ONE])
    for affinity in (A, B, A, C):
        one = await begun(pool, affinity)
    assert [pool.binds(affinity, one) for affinity in (A, B, C)] == [True, False, True]


async def test_calls_without_an_episode_are_never_lost() -> None:
    pool = Replicas([ONE, TWO])
    first = await pool.choose()
    pool.answered(first, None, PATH)
    assert not pool.binds(None, first)
    pool.remove(first.url)
    assert await where(pool) in pool.urls


async def test_a_preference_is_kept_while_its_endpoint_works() -> None:
    pool = Replicas([ONE, TWO])
    first = await begun(pool, CACHE)
    with first.busy():
        assert await pool.choose(CACHE) is first


async def test_a_preference_is_never_lost_with_its_endpoint() -> None:
    pool = Replicas([ONE, TWO])
    first = await begun(pool, CACHE)
    assert not pool.binds(CACHE, first)
    pool.remove(first.url)
    assert await where(pool, CACHE) != first.url


async def test_a_preference_that_all_calls_share_does_not_pile_them_on_one_endpoint() -> None:
    pool = Replicas([ONE, TWO, THREE])
    with contextlib.ExitStack() as calls:
        for _ in range(60):
            calls.enter_context((await begun(pool, CACHE)).busy())
        busy = pool.in_flight
    assert max(busy.values()) <= 2 * min(busy.values()) + module.SLACK + 1


def test_an_endpoint_that_answers_for_another_model_than_the_rest_is_found_out() -> None:
    pool = Replicas([ONE, TWO, THREE])
    one, two, three = (endpoint_of(pool, url) for url in (ONE, TWO, THREE))
    assert pool.answers_as(one, "m", "m")
    assert not pool.answers_as(two, "other", "m")
    assert pool.answers_as(three, "m", "m")


def test_a_pool_that_names_its_model_otherwise_is_believed() -> None:
    pool = Replicas([ONE, TWO, THREE])
    asked = [pool.answers_as(endpoint_of(pool, url), "alias", "m") for url in (ONE, TWO, THREE, ONE)]
    assert asked == [False, True, True, True]


def test_endpoints_that_all_name_their_model_otherwise_and_each_differently_are_used() -> None:
    pool = Replicas([ONE, TWO, THREE])
    named = [pool.answers_as(endpoint_of(pool, url), url, "m") for url in (ONE, TWO, THREE, ONE, TWO)]
    assert named == [False, False, True, True, True]


@pytest.mark.parametrize("found", ["org/m", "M", "m-2026-08-07", "m:free", "m@1"])
def test_what_hosted_apis_add_to_a_model_name_is_no_other_model(found: str) -> None:
    pool = Replicas([ONE, TWO, THREE])
    assert pool.answers_as(endpoint_of(pool, ONE), found, "m")


async def test_metrics_say_how_busy_each_engine_is_and_which_failed_and_hold_no_password() -> None:
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

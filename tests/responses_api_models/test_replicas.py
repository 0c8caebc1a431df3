"""Which engine a call goes to: an episode stays where it began, and is lost with its engine."""

from __future__ import annotations

import asyncio

import pytest

from responses_api_models import replicas as module
from responses_api_models.replicas import Replicas
from services.errors import Failure, FailureKind

ONE, TWO, THREE = (f"http://engine{number}/v1" for number in (1, 2, 3))


async def lost(pool: Replicas, episode: str) -> str:
    with pytest.raises(Failure) as caught:
        await pool.choose(episode)
    assert caught.value.kind is FailureKind.SESSION_LOST
    assert not caught.value.terminal
    return caught.value.problem.detail


async def test_an_episode_stays_where_its_first_call_went_however_busy_that_is() -> None:
    pool = Replicas([ONE, TWO])
    first = await pool.choose("a")
    with pool.busy(first), pool.busy(first):
        assert await pool.choose("a") == first
        assert await pool.choose("b") != first


async def test_a_first_call_goes_to_the_least_busy_and_equally_busy_ones_take_turns() -> None:
    pool = Replicas([ONE, TWO, THREE])
    with pool.busy(ONE), pool.busy(ONE), pool.busy(TWO):
        assert await pool.choose(None) == THREE
    assert len({await pool.choose(None) for _ in range(3)}) == 3


async def test_calls_are_counted_while_they_last_even_when_they_fail() -> None:
    pool = Replicas([ONE, TWO])
    with pytest.raises(ValueError, match="no"), pool.busy(ONE):
        assert pool.in_flight == {ONE: 1, TWO: 0}
        raise ValueError("no")
    assert pool.in_flight == {ONE: 0, TWO: 0}


async def test_an_address_that_failed_comes_last_and_is_taken_when_there_is_no_other() -> None:
    pool = Replicas([ONE, TWO])
    pool.shun(ONE)
    assert [await pool.choose(None) for _ in range(3)] == [TWO, TWO, TWO]
    pool.remove(TWO)
    assert await pool.choose(None) == ONE


async def test_an_address_that_failed_is_as_good_as_any_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHUNNED_S", 0.0)
    pool = Replicas([ONE, TWO])
    pool.shun(ONE)
    assert {await pool.choose(None) for _ in range(2)} == {ONE, TWO}


async def test_an_episode_is_lost_with_its_engine_and_may_begin_again_elsewhere() -> None:
    pool = Replicas([ONE, TWO])
    first = await pool.choose("a")
    pool.remove(first)
    assert "gone" in await lost(pool, "a")
    assert await pool.choose("a") in pool.urls


async def test_an_engine_that_came_back_at_the_same_address_is_another() -> None:
    pool = Replicas([ONE])
    await pool.choose("a")
    pool.remove(ONE)
    pool.add(ONE)
    await lost(pool, "a")
    assert await pool.choose("a") == ONE


async def test_adding_an_address_that_is_there_loses_nothing() -> None:
    pool = Replicas([ONE])
    await pool.choose("a")
    with pool.busy(ONE):
        pool.add(ONE)
        assert pool.in_flight == {ONE: 1}
    assert await pool.choose("a") == ONE


async def test_a_call_that_outlives_its_engine_brings_the_address_neither_back_nor_below_zero() -> None:
    pool = Replicas([ONE, TWO])
    with pool.busy(ONE):
        pool.remove(ONE)
        with pool.busy(ONE):
            assert pool.urls == [TWO]
        pool.add(ONE)
    assert pool.in_flight == {TWO: 0, ONE: 0}
    assert {await pool.choose(None) for _ in range(2)} == {ONE, TWO}


async def test_a_call_waits_while_no_engine_is_up() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(pool.choose("a"))
    await asyncio.sleep(0)
    assert not call.done()
    pool.add(ONE)
    assert await call == ONE


async def test_a_call_waits_on_when_the_engine_that_came_is_gone_again() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(pool.choose("a"))
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
        await pool.choose("a")
    assert caught.value.kind is FailureKind.UNREACHABLE


async def test_an_episode_whose_engine_is_gone_does_not_wait_for_another() -> None:
    pool = Replicas([ONE], wait_s=30)
    await pool.choose("a")
    pool.remove(ONE)
    await lost(pool, "a")


async def test_of_too_many_episodes_the_longest_unused_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EPISODES", 2)
    pool = Replicas([ONE])
    for episode in ("a", "b", "a", "c"):
        await pool.choose(episode)
    assert [pool.seated(episode) for episode in ("a", "b", "c")] == [True, False, True]


async def test_calls_without_an_episode_are_never_lost() -> None:
    pool = Replicas([ONE, TWO])
    assert not pool.seated(None)
    first = await pool.choose(None)
    pool.remove(first)
    assert await pool.choose(None) in pool.urls


async def test_metrics_say_how_busy_each_engine_is_and_which_failed_and_hold_no_password() -> None:
    pool = Replicas(["http://me:secret@engine1:8000/v1", TWO])
    pool.shun(TWO)
    with pool.busy("http://me:secret@engine1:8000/v1"):
        found = {(s.name, s.labels["engine"]): s.value for metric in pool.collect() for s in metric.samples}
    assert found == {
        ("rollyard_engine_in_flight", "engine1:8000/v1"): 1,
        ("rollyard_engine_in_flight", "engine2/v1"): 0,
        ("rollyard_engine_shunned", "engine1:8000/v1"): 0,
        ("rollyard_engine_shunned", "engine2/v1"): 1,
    }

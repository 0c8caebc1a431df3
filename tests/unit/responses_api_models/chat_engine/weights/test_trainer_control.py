"""A trainer's control calls follow one another, and no engine that is silent or refuses keeps model calls waiting."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.responses_api_models.chat_engine.weights import joining_engines
from rollyard.services.types import Json
from tests.support.fixtures import until
from tests.support.weight_engine import STARTED, TrainerClient, WeightEngine, engine_url, trainer_server

NEW = "/weights/new"
PHASES = ["/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/resume"]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining_engines, "CHECK_INTERVAL_S", 0.02)


def pool(policy: TrainerClient) -> list[str]:
    return policy.server.upstream.replicas.urls


async def sent(policy: TrainerClient, *paths: str) -> list[int]:
    return [(await policy.post(path, {}))[0] for path in paths]


async def test_an_update_that_comes_during_a_pause_loads_only_once_the_engine_has_paused() -> None:
    engine = WeightEngine()
    engine.delayed["/pause"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        pausing = asyncio.create_task(policy.post("/pause?mode=wait"))
        await until(lambda: "/pause?mode=wait" in engine.paths)
        updating = asyncio.create_task(policy.update(NEW))
        await asyncio.sleep(0.02)
        assert "/collective_rpc" not in engine.paths
        engine.delayed.pop("/pause").set()
        assert (await pausing)[0] == (await updating)[0] == 200
        assert (engine.paused, engine.weights, engine.paths.count("/resume")) == (True, NEW, 0)
        assert await sent(policy, "/resume") == [200]
        assert await policy.call_model() == (200, NEW)


async def test_a_resume_beside_an_update_starts_no_engine_in_the_middle_of_its_load() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        await policy.post("/pause")
        updating = asyncio.create_task(policy.update(NEW))
        resuming = asyncio.create_task(policy.post("/resume"))
        await until(lambda: "/collective_rpc" in engine.paths)
        assert engine.paused and (await policy.post("/resume"))[0] == 409
        engine.delayed["/collective_rpc"].set()
        assert [(await updating)[0], (await resuming)[0]] == [200, 200]  # it came before the load began, and waited
        assert (engine.paused, await policy.call_model()) == (False, (200, NEW))


async def test_model_calls_wait_while_engines_are_being_paused_and_no_longer_when_that_fails() -> None:
    good, bad = WeightEngine(), WeightEngine()
    bad.delayed["/pause"] = asyncio.Event()
    bad.fails.add("/pause")
    async with trainer_server(good, bad) as policy:
        pausing = asyncio.create_task(policy.post("/pause"))
        await until(lambda: good.paused)
        calling = asyncio.create_task(policy.call_model())
        await asyncio.sleep(0.02)
        assert not calling.done()
        bad.delayed["/pause"].set()
        assert (await pausing)[0] == 502
        assert await calling == (200, STARTED)
        assert (good.paused, bad.paused, len(pool(policy))) == (False, False, 2)


async def test_a_second_pause_that_fails_does_not_end_the_first() -> None:
    engine, other = WeightEngine(), WeightEngine()
    async with trainer_server(engine, other) as policy:
        await policy.post("/pause")
        other.fails_once.add("/pause")
        assert await sent(policy, "/pause") == [502]
        assert engine.paused and other.paused
        assert await sent(policy, "/resume") == [200]
        assert await policy.call_model() == (200, STARTED)


async def test_two_pauses_at_once_end_with_one_resume_and_a_resume_without_a_pause_is_fine() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        assert await sent(policy, "/resume") == [200]
        answers = await asyncio.gather(policy.post("/pause"), policy.post("/pause"))
        assert [status for status, _ in answers] == [200, 200]
        assert await sent(policy, "/resume") == [200]
        assert await policy.call_model() == (200, STARTED)


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/wake_up"])
async def test_a_dead_address_keeps_model_calls_waiting_at_no_control_call(path: str) -> None:
    good, dying = WeightEngine(), WeightEngine()
    dying.crashes_at.add(path)
    end = "/wake_up" if path in ("/sleep", "/wake_up") else "/resume"
    async with trainer_server(good, dying) as policy:
        status, said = await policy.post("/sleep" if end == "/wake_up" else "/pause")
        assert status == 200
        if path != end:
            assert said["lost"] == [engine_url(1)]
        assert await sent(policy, end) == [200]
        assert [await policy.call_model() for _ in range(3)] == [(200, STARTED)] * 3
        assert pool(policy) == [engine_url(0)]


async def test_a_lost_engine_that_answers_again_comes_back_with_the_policys_weights() -> None:
    good, dying = WeightEngine(), WeightEngine()
    async with trainer_server(good, dying) as policy:
        dying.dead = True
        assert (await policy.update(NEW))[0] == 200
        assert pool(policy) == [engine_url(0)]
        dying.restart()
        await until(lambda: len(pool(policy)) == 2)
        assert (dying.weights, dying.label, dying.paused) == (NEW, "1", False)


async def test_an_engine_whose_answer_to_a_pause_was_lost_comes_back_running() -> None:
    good, mute = WeightEngine(), WeightEngine()
    async with trainer_server(good, mute) as policy:
        mute.dead = True
        assert await sent(policy, "/pause") == [200]
        mute.dead, mute.paused = False, True
        assert await sent(policy, "/resume") == [200]
        await until(lambda: len(pool(policy)) == 2)
        assert not mute.paused


async def test_a_lost_engine_with_half_an_update_stays_out_until_it_is_started_again() -> None:
    good, half = WeightEngine(), WeightEngine()
    half.crashes_at.add("/collective_rpc")
    async with trainer_server(good, half) as policy:
        assert (await policy.update(NEW))[1]["lost"] == [engine_url(1)]
        half.dead, looked = False, len(half.paths)
        half.crashes_at.clear()
        await until(lambda: len(half.paths) > looked + 4)
        assert pool(policy) == [engine_url(0)]
        half.restart()
        await until(lambda: len(pool(policy)) == 2)
        assert half.weights == NEW


@pytest.mark.parametrize("path", PHASES)
async def test_an_engine_that_dies_in_any_phase_of_an_update_takes_no_part_in_it(path: str) -> None:
    good, dying = WeightEngine(), WeightEngine()
    async with trainer_server(good, dying) as policy:
        dying.crashes_at.add(path)
        status, said = await policy.update(NEW)
        assert (status, said["engines"], said["lost"]) == (200, 1, [engine_url(1)])
        assert [await policy.call_model() for _ in range(3)] == [(200, NEW)] * 3
        assert (good.paused, pool(policy), await policy.version()) == (False, [engine_url(0)], "1")


@pytest.mark.parametrize("path", PHASES)
async def test_the_only_engine_is_never_taken_out_of_the_pool(path: str) -> None:
    engine = WeightEngine()
    async with trainer_server(engine, max_attempts=1) as policy:
        engine.crashes_at.add(path)
        assert (await policy.update(NEW))[0] == 502
        assert pool(policy) == [engine_url(0)]
        engine.restart()
        assert (await policy.call_model())[0] == 200
        status, _ = await policy.update("/weights/next")
        assert (status, engine.weights, engine.paused) == (200, "/weights/next", False)


async def test_a_resume_that_no_engine_answers_keeps_no_call_waiting_once_one_is_there() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post("/pause")
        engine.dead = True
        assert await sent(policy, "/resume") == [502]
        engine.dead = False  # it was out of reach and is still paused
        await until(lambda: not engine.paused)
        assert await policy.call_model() == (200, STARTED)


async def test_an_engine_that_refuses_to_go_on_is_out_of_the_pool_and_the_others_go_on() -> None:
    good, bad = WeightEngine(), WeightEngine()
    async with trainer_server(good, bad) as policy:
        await policy.post("/pause")
        bad.fails.add("/resume")
        assert await sent(policy, "/resume") == [502]
        assert [await policy.call_model() for _ in range(3)] == [(200, STARTED)] * 3
        bad.fails.clear()
        await until(lambda: len(pool(policy)) == 2)
        assert not bad.paused


async def test_all_calls_wait_for_an_engine_that_was_started_again_and_share_one_load() -> None:
    engine = WeightEngine(failing_folder="/weights/torn")
    async with trainer_server(engine) as policy:
        await policy.update(NEW)
        await policy.update("/weights/torn")
        engine.restart()
        engine.calls.clear()
        engine.delayed["/collective_rpc"] = asyncio.Event()
        calling = [asyncio.create_task(policy.call_model()) for _ in range(25)]
        await until(lambda: "/collective_rpc" in engine.paths)
        calling += [asyncio.create_task(policy.call_model()) for _ in range(25)]
        await asyncio.sleep(0.02)
        engine.delayed["/collective_rpc"].set()
        assert await asyncio.gather(*calling) == [(200, NEW)] * 50
        assert engine.paths.count("/collective_rpc") == 1


async def test_the_wait_for_an_engine_that_was_started_again_ends() -> None:
    engine = WeightEngine(failing_folder="/weights/torn")
    async with trainer_server(engine, request_timeout_s=1.0) as policy:
        await policy.update(NEW)
        await policy.update("/weights/torn")
        engine.restart()
        engine.delayed["/weight_info"] = asyncio.Event()
        statuses = [status for status, _ in await asyncio.gather(*(policy.call_model() for _ in range(5)))]
        assert set(statuses) <= {503, 504}
        engine.delayed.pop("/weight_info").set()


async def test_an_engine_that_lost_its_weights_and_died_keeps_the_others_from_nothing() -> None:
    good, bad = WeightEngine(), WeightEngine(failing_folder="/weights/torn")
    async with trainer_server(good, bad) as policy:
        assert (await policy.update("/weights/torn"))[0] == 502
        bad.dead = True
        assert [await policy.call_model() for _ in range(3)] == [(200, STARTED)] * 3
        assert (await policy.update(NEW))[0] == 200


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/start_weight_update", "/finish_weight_update"])
async def test_a_control_call_is_brought_to_its_end_when_its_caller_hangs_up(path: str) -> None:
    engine = WeightEngine()
    order = ["/pause", "/start_weight_update", "/finish_weight_update", "/resume"]
    async with trainer_server(engine) as policy:
        before = order[: order.index(path)] if path in order[:3] else ["/pause"] if path == "/resume" else []
        assert await sent(policy, *before) == [200] * len(before)
        engine.delayed[path] = asyncio.Event()
        calling = asyncio.create_task(policy.post(path, {}))
        await until(lambda: path in engine.paths)
        calling.cancel()
        await asyncio.wait([calling])
        engine.delayed.pop(path).set()
        after = order[order.index(path) + 1 :] if path in order else ["/wake_up"]
        assert await sent(policy, *after) == [200] * len(after)
        weights = "/weights/sent" if "/finish_weight_update" in (path, *after) and path != "/resume" else STARTED
        assert await policy.call_model() == (200, weights)


async def test_a_server_that_stops_ends_the_update_that_runs_and_begins_no_other() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/collective_rpc" in engine.paths)
        waiting = asyncio.create_task(policy.update("/weights/next"))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(policy.server.stop())
        await asyncio.sleep(0.01)
        engine.delayed["/collective_rpc"].set()
        await stopping
        assert [(await updating)[0], (await waiting)[0]] == [200, 499]
        assert (engine.weights, engine.paused) == (NEW, False)


async def test_a_start_that_every_engine_refuses_takes_no_weights_away() -> None:
    engines = [WeightEngine(), WeightEngine()]
    for engine in engines:
        engine.answers["/start_weight_update"] = (400, b'{"detail": "no transfer engine"}')
    async with trainer_server(*engines) as policy:
        assert await sent(policy, "/pause", "/start_weight_update", "/resume") == [200, 502, 200]
        assert await policy.call_model() == (200, STARTED)
        assert {engine.label for engine in engines} == {"0"}


async def test_a_lost_engine_joins_a_trainer_that_sets_up_its_transfer_again() -> None:
    good, lost = WeightEngine(), WeightEngine()
    steps = ["/start_weight_update", "/finish_weight_update", "/resume"]
    async with trainer_server(good, lost) as policy:
        lost.dead = True
        assert await sent(policy, "/pause", *steps) == [200] * 4
        lost.restart()
        await asyncio.sleep(0.05)
        assert pool(policy) == [engine_url(0)]
        assert await sent(policy, "/pause", "/init_weight_transfer_engine", *steps) == [200] * 5
        assert (await policy.call_model(), len(pool(policy))) == ((200, "/weights/sent"), 2)


async def test_versions_that_are_counted_never_go_back_whatever_comes_at_once() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post("/pause")
        work: list[tuple[str, Json]] = [("/weights/update", {"path": NEW}), ("/finish_weight_update", {})] * 4
        await asyncio.gather(*(policy.post(path, body) for path, body in work))
        assert await sent(policy, "/resume") == [200]
        labels = [body["new_version"] for path, body in engine.calls if path == "/update_weight_version"]
        counted = [int(label) for label in labels if label.isdecimal()]
        assert counted == sorted(counted)
        assert (await policy.version(), engine.label) == (str(max(counted[-1], int(engine.label))), engine.label)

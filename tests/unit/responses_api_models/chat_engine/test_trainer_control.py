"""A trainer's control calls are serialized, and engines that hang or refuse do not keep model calls waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel
from tests.support.checkpoint_run import active_urls
from tests.support.waiting import until
from tests.support.weight_engine import STARTED, TrainerClient, WeightEngine, engine_url, trainer_server

NEW = "/weights/new"
PHASES = ["/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/resume"]


async def post_all(policy: TrainerClient, *paths: str) -> list[int]:
    return [(await policy.post(path, {}))[0] for path in paths]


async def test_an_update_during_a_pause_loads_only_after_the_engine_has_paused() -> None:
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
        assert await post_all(policy, "/resume") == [200]
        assert await policy.call_model() == (200, NEW)


async def test_a_resume_during_an_update_does_not_start_an_engine_in_the_middle_of_its_load() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        await policy.post("/pause")
        updating = asyncio.create_task(policy.update(NEW))
        resuming = asyncio.create_task(policy.post("/resume"))
        await until(lambda: "/collective_rpc" in engine.paths)
        assert engine.paused and (await policy.post("/resume"))[0] == 409
        engine.delayed["/collective_rpc"].set()
        assert (await updating)[0] == (await resuming)[0] == 200  # the first resume waited for the load
        assert (engine.paused, await policy.call_model()) == (False, (200, NEW))


async def test_model_calls_wait_while_engines_pause_and_proceed_when_the_pause_fails() -> None:
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
        assert (good.paused, bad.paused, len(active_urls(policy))) == (False, False, 2)


@pytest.mark.parametrize("path", ["/pause", "/resume", "/sleep", "/wake_up"])
async def test_a_dead_engine_does_not_block_model_calls_after_any_control_call(path: str) -> None:
    good, dying = WeightEngine(), WeightEngine()
    dying.crashes_at.add(path)
    end = "/wake_up" if path in ("/sleep", "/wake_up") else "/resume"
    async with trainer_server(good, dying) as policy:
        status, content = await policy.post("/sleep" if end == "/wake_up" else "/pause")
        assert status == 200
        if path != end:
            assert content["lost"] == [engine_url(1)]
        assert await post_all(policy, end) == [200]
        assert [await policy.call_model() for _ in range(3)] == [(200, STARTED)] * 3
        assert active_urls(policy) == [engine_url(0)]


async def test_a_lost_engine_with_half_an_update_stays_out_until_it_restarts() -> None:
    good, half = WeightEngine(), WeightEngine()
    half.crashes_at.add("/collective_rpc")
    async with trainer_server(good, half) as policy:
        assert (await policy.update(NEW))[1]["lost"] == [engine_url(1)]
        half.dead, requests_before = False, len(half.paths)
        half.crashes_at.clear()
        await until(lambda: len(half.paths) > requests_before + 4)
        assert active_urls(policy) == [engine_url(0)]
        half.restart()
        await until(lambda: len(active_urls(policy)) == 2)
        assert half.weights == NEW


@pytest.mark.parametrize("path", PHASES)
async def test_an_engine_that_dies_in_any_phase_of_an_update_is_left_out(path: str) -> None:
    good, dying = WeightEngine(), WeightEngine()
    async with trainer_server(good, dying) as policy:
        dying.crashes_at.add(path)
        status, content = await policy.update(NEW)
        assert (status, content["engines"], content["lost"]) == (200, 1, [engine_url(1)])
        assert [await policy.call_model() for _ in range(3)] == [(200, NEW)] * 3
        assert (good.paused, active_urls(policy), await policy.version()) == (False, [engine_url(0)], "1")


@pytest.mark.parametrize("path", PHASES)
async def test_the_only_engine_always_stays_in_the_pool(path: str) -> None:
    engine = WeightEngine()
    async with trainer_server(engine, max_attempts=1) as policy:
        engine.crashes_at.add(path)
        assert (await policy.update(NEW))[0] == 502
        assert active_urls(policy) == [engine_url(0)]
        engine.restart()
        assert (await policy.call_model())[0] == 200
        status, _ = await policy.update("/weights/next")
        assert (status, engine.weights, engine.paused) == (200, "/weights/next", False)


async def test_calls_proceed_when_an_engine_that_missed_the_resume_is_reachable_again(
    engine: WeightEngine, policy: TrainerClient
) -> None:
    await policy.post("/pause")
    engine.dead = True
    assert await post_all(policy, "/resume") == [502]
    engine.dead = False  # reachable again and still paused
    await until(lambda: not engine.paused)
    assert await policy.call_model() == (200, STARTED)


async def test_an_engine_that_fails_to_resume_leaves_the_pool_and_the_others_continue() -> None:
    good, bad = WeightEngine(), WeightEngine()
    async with trainer_server(good, bad) as policy:
        await policy.post("/pause")
        bad.fails.add("/resume")
        assert await post_all(policy, "/resume") == [502]
        assert [await policy.call_model() for _ in range(3)] == [(200, STARTED)] * 3
        bad.fails.clear()
        await until(lambda: len(active_urls(policy)) == 2)
        assert not bad.paused


async def test_concurrent_calls_wait_for_a_restarted_engine_and_share_one_load() -> None:
    engine = WeightEngine(failing_folder="/weights/broken")
    async with trainer_server(engine) as policy:
        await policy.update(NEW)
        await policy.update("/weights/broken")
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


@pytest.mark.parametrize("path", ["/pause", "/start_weight_update", "/finish_weight_update"])
async def test_a_control_call_completes_when_its_caller_disconnects(path: str) -> None:
    engine = WeightEngine()
    order = ["/pause", "/start_weight_update", "/finish_weight_update", "/resume"]
    at = order.index(path)
    async with trainer_server(engine) as policy:
        assert await post_all(policy, *order[:at]) == [200] * at
        engine.delayed[path] = asyncio.Event()
        calling = asyncio.create_task(policy.post(path, {}))
        await until(lambda: path in engine.paths)
        calling.cancel()
        await asyncio.wait([calling])
        engine.delayed.pop(path).set()
        assert await post_all(policy, *order[at + 1 :]) == [200] * (3 - at)
        assert await policy.call_model() == (200, "/weights/sent")


async def test_a_stopping_server_completes_the_running_update_and_starts_no_other() -> None:
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


async def test_a_weight_update_that_every_engine_refuses_to_start_leaves_the_weights_alone() -> None:
    engines = [WeightEngine(), WeightEngine()]
    for engine in engines:
        engine.answers["/start_weight_update"] = (400, b'{"detail": "no transfer engine"}')
    async with trainer_server(*engines) as policy:
        assert await post_all(policy, "/pause", "/start_weight_update", "/resume") == [200, 502, 200]
        assert await policy.call_model() == (200, STARTED)
        assert {engine.label for engine in engines} == {"0"}


async def test_a_lost_engine_rejoins_when_the_trainer_sets_up_its_transfer_again() -> None:
    good, lost = WeightEngine(), WeightEngine()
    steps = ["/start_weight_update", "/finish_weight_update", "/resume"]
    async with trainer_server(good, lost) as policy:
        lost.dead = True
        assert await post_all(policy, "/pause", *steps) == [200] * 4
        lost.restart()
        await asyncio.sleep(0.05)
        assert active_urls(policy) == [engine_url(0)]
        assert await post_all(policy, "/pause", "/init_weight_transfer_engine", *steps) == [200] * 5
        assert (await policy.call_model(), len(active_urls(policy))) == ((200, "/weights/sent"), 2)


SHORT = "lease_s=0.05"
HEADER = "x-rollyard-pause-lease"


async def status_of(policy: TrainerClient) -> Any:
    return (await policy.get("/weights"))[1]


async def test_a_pause_without_a_resume_expires_and_is_reported(
    engine: WeightEngine, policy: TrainerClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await policy.post(f"/pause?mode=keep&{SHORT}"))[0] == 200
    assert await policy.call_model() == (200, STARTED)  # the call waited until the lease expired
    assert not engine.paused
    status = await status_of(policy)
    assert (status["lease"], status["lease_expired"]["lease_s"], status["waits_for"]) == (None, 0.05, [])
    assert "0.05 s" in caplog.text


async def test_engines_do_not_see_the_lease_and_the_response_reports_it(
    engine: WeightEngine, policy: TrainerClient
) -> None:
    answer, content = await policy.send("POST", "/pause?mode=keep&lease_s=30", {"lease_s": 40, "x": 1})
    status = await status_of(policy)
    assert (engine.calls[0], content) == (("/pause?mode=keep", {"x": 1}), {"status": "paused"})
    assert (answer.headers[HEADER], status["lease"]["lease_s"]) == ("30", 30)
    assert 0 < status["lease"]["left_s"] <= 30


async def test_a_pause_without_a_lease_uses_the_one_from_the_settings() -> None:
    cases: list[tuple[Json, float]] = [({}, 600), ({"pause_lease_s": 12.5}, 12.5)]
    for settings, length_s in cases:
        async with trainer_server(WeightEngine(), **settings) as policy:
            await policy.post("/pause")
            assert (await status_of(policy))["lease"]["lease_s"] == length_s
            await policy.post("/resume")
            assert (await status_of(policy))["lease"] is None


async def test_every_control_call_renews_the_lease() -> None:
    for path in ["/pause?mode=keep", "/reset_prefix_cache", "/weights/update", "/start_weight_update"]:
        engine = WeightEngine()
        async with trainer_server(engine) as policy:
            await policy.post("/pause?lease_s=60")
            await asyncio.sleep(0.05)
            before = (await status_of(policy))["lease"]["left_s"]
            await policy.post(path, {"path": "/weights/new"} if "update" in path else {})
            lease = (await status_of(policy))["lease"]
        assert (lease["lease_s"], lease["left_s"] > before) == (60, True)


async def test_a_trainer_that_dies_during_an_update_causes_a_failure_that_names_the_reason() -> None:
    invalid_urls: list[str] = []

    class RecordingModel(VllmModel):
        def on_invalid_weights(self, url: str) -> None:
            invalid_urls.append(url)

    engine = WeightEngine()
    async with trainer_server(engine, kind=RecordingModel) as policy:
        await policy.update("/weights/one", version="a")
        await policy.post("/pause?lease_s=1")
        await policy.post("/start_weight_update", {})
        await policy.post("/update_weights", {})
        status, detail = await policy.call_model()
        assert (status, engine_url(0) in detail, engine.dead) == (503, True, False)
        assert invalid_urls == [engine_url(0)]
        for path in ("/update_weights", "/finish_weight_update"):
            assert (await policy.post(path, {"weight_version": "b"}))[0] == 409
        policy.server.trainer.gone(engine_url(0))
        engine.restart()
        await policy.server.trainer.register_engine(engine_url(0))
        assert await policy.call_model() == (200, "/weights/one")


async def test_a_sleep_has_a_lease_only_on_request(engine: WeightEngine, policy: TrainerClient) -> None:
    await policy.post("/pause")
    await policy.post("/sleep?level=1")
    assert (await status_of(policy))["lease"] is None
    await policy.post("/sleep?level=1&lease_s=0.05")
    assert await policy.call_model() == (200, STARTED)
    assert "/wake_up" in engine.paths


async def test_a_failed_resume_after_an_update_is_retried() -> None:
    engine = WeightEngine()
    engine.fails_once.add("/resume")
    async with trainer_server(engine, pause_lease_s=0.05) as policy:
        status, content = await policy.update("/weights/new")
        assert (status, "resume" in content["detail"]) == (502, True)
        assert await policy.call_model() == (200, "/weights/new")


async def test_an_invalid_lease_is_refused_before_the_pause(engine: WeightEngine, policy: TrainerClient) -> None:
    for lease in ("0", "-1", "nan", "inf", "", "soon", "1e9", "true"):
        status, content = await policy.post(f"/pause?lease_s={lease}")
        assert (status, engine.paused, "lease_s" in content["detail"]) == (400, False, True), lease


async def test_of_two_trainers_the_later_pause_sets_the_lease_and_neither_aborts_the_others_update(
    engine: WeightEngine, policy: TrainerClient
) -> None:
    await policy.post("/pause?lease_s=60")
    await policy.post("/pause?lease_s=0.05")
    await until(lambda: not engine.paused)
    status, content = await policy.post("/start_weight_update", {})
    assert (status, "/pause?mode=keep" in content["detail"]) == (409, True)
    both = await asyncio.gather(policy.update("/weights/a", version="x"), policy.update("/weights/b", version="x"))
    assert sorted(status for status, _ in both) == [200, 409]
    assert await policy.call_model() == (200, "/weights/a")


async def test_an_update_from_a_folder_during_another_trainers_update_is_refused_and_the_latter_completes(
    engine: WeightEngine, policy: TrainerClient
) -> None:
    await policy.post("/pause?lease_s=60")
    await policy.post("/start_weight_update", {})
    status, content = await policy.update("/weights/new")
    assert (status, "is not finished" in content["detail"], "/collective_rpc" in engine.paths) == (502, True, False)
    assert (await policy.post("/finish_weight_update", {"weight_version": "1"}))[0] == 200
    await policy.post("/resume")
    assert await policy.call_model() == (200, "/weights/sent")

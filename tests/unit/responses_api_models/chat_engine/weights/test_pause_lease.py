"""A pause has a lease: a dead trainer cannot stop the policy for ever, and a slow one is not interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.server.settings import parse_settings
from tests.support.waiting import until
from tests.support.weight_engine import STARTED, TrainerClient, WeightEngine, engine_url, trainer_server

SHORT = "lease_s=0.05"
HEADER = "x-rollyard-pause-lease"


async def status_of(policy: TrainerClient) -> Any:
    return (await policy.get("/weights"))[1]


async def test_a_pause_without_a_resume_expires_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        assert (await policy.post(f"/pause?mode=keep&{SHORT}"))[0] == 200
        assert (await policy.call_model(), engine.paused) == (
            (200, STARTED),
            False,
        )  # the call waited until the lease expired
        status = await status_of(policy)
    assert (status["lease"], status["lease_expired"]["lease_s"], status["waits_for"]) == (None, 0.05, [])
    assert "0.05 s" in caplog.text


async def test_engines_do_not_see_the_lease_and_the_response_reports_it() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
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


async def test_a_control_call_that_takes_longer_than_the_lease_keeps_it_alive() -> None:
    engine = WeightEngine()
    engine.delayed["/reset_prefix_cache"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        await policy.post("/pause?lease_s=0.6")
        calling = asyncio.create_task(policy.post("/reset_prefix_cache"))
        await asyncio.sleep(0.8)
        assert engine.paused
        engine.delayed["/reset_prefix_cache"].set()
        await calling
        assert (await status_of(policy))["waits_for"]
        assert await policy.call_model() == (200, STARTED)


async def test_a_trainer_that_returns_after_the_lease_must_pause_again() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post(f"/pause?{SHORT}")
        await until(lambda: not engine.paused)
        status, content = await policy.post("/start_weight_update", {})
        assert (status, "/pause?mode=keep" in content["detail"], engine.weights) == (409, True, STARTED)
        assert (await policy.update("/weights/new"))[0] == 200
        assert await policy.call_model() == (200, "/weights/new")


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
        policy.server.gone(engine_url(0))
        engine.restart()
        await policy.server.register_engine(engine_url(0))
        assert await policy.call_model() == (200, "/weights/one")


async def test_a_sleep_has_a_lease_only_on_request() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post("/pause")
        await policy.post("/sleep?level=1")
        assert (await status_of(policy))["lease"] is None
        await policy.post("/sleep?level=1&lease_s=0.05")
        assert await policy.call_model() == (200, STARTED)
        assert "/wake_up" in engine.paths


async def test_a_failed_resume_is_retried() -> None:
    engine = WeightEngine()
    engine.fails_once.add("/resume")
    async with trainer_server(engine) as policy:
        await policy.post(f"/pause?{SHORT}")
        assert await policy.call_model() == (200, STARTED)
        assert engine.paths.count("/resume") == 2


async def test_a_failed_resume_after_an_update_is_retried() -> None:
    engine = WeightEngine()
    engine.fails_once.add("/resume")
    async with trainer_server(engine, pause_lease_s=0.05) as policy:
        status, content = await policy.update("/weights/new")
        assert (status, "resume" in content["detail"]) == (502, True)
        assert await policy.call_model() == (200, "/weights/new")


async def test_a_lease_also_expires_while_no_engine_is_up(caplog: pytest.LogCaptureFixture) -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post(f"/pause?{SHORT}")
        policy.server.gone(engine_url(0))
        await until(lambda: "no control call" in caplog.text)
        engine.restart()
        await policy.server.register_engine(engine_url(0))
        assert await policy.call_model() == (200, STARTED)


async def test_an_invalid_lease_is_refused_before_the_pause() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        for lease in ("0", "-1", "nan", "inf", "", "soon", "1e9", "true"):
            status, content = await policy.post(f"/pause?lease_s={lease}")
            assert (status, engine.paused, "lease_s" in content["detail"]) == (400, False, True), lease


async def test_a_lease_in_the_body_is_validated_as_strictly() -> None:
    leases: list[Any] = [0, True, [], {}, "x"]
    async with trainer_server(WeightEngine()) as policy:
        for lease in leases:
            assert (await policy.post("/pause", {"lease_s": lease}))[0] == 400, lease


def test_a_lease_of_zero_in_the_settings_is_refused() -> None:
    with pytest.raises(OperatorError, match="pause_lease_s"):
        parse_settings(
            VllmModelSettings, {"base_url": engine_url(0), "model": "tiny", "pause_lease_s": 0}, "policy_model"
        )


async def test_a_failing_resume_is_not_retried_in_a_tight_loop(caplog: pytest.LogCaptureFixture) -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        engine.fails.add("/resume")
        await policy.post("/pause?lease_s=0.001")
        await until(lambda: "retrying in" in caplog.text)
        await asyncio.sleep(0.1)
        assert engine.paths.count("/resume") == 1
        assert (await status_of(policy))["lease"]["lease_s"] == 5.0


async def test_a_lease_that_expires_during_an_update_ends_after_the_update() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        await policy.post("/pause?lease_s=0.6")
        updating = asyncio.create_task(policy.update("/weights/new"))
        await asyncio.sleep(0.8)
        assert engine.paused
        engine.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        assert await policy.call_model() == (200, "/weights/new")
        assert not engine.paused


async def test_of_two_trainers_the_later_pause_sets_the_lease_and_neither_aborts_the_others_update() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post("/pause?lease_s=60")
        await policy.post("/pause?lease_s=0.05")
        await until(lambda: not engine.paused)
        status, content = await policy.post("/start_weight_update", {})
        assert (status, "/pause?mode=keep" in content["detail"]) == (409, True)
        both = await asyncio.gather(policy.update("/weights/a", version="x"), policy.update("/weights/b", version="x"))
        assert sorted(status for status, _ in both) == [200, 409]
        assert await policy.call_model() == (200, "/weights/a")


async def test_an_update_from_a_folder_during_another_trainers_update_is_refused_and_the_latter_completes() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.post("/pause?lease_s=60")
        await policy.post("/start_weight_update", {})
        status, content = await policy.update("/weights/new")
        assert (status, "is not finished" in content["detail"], "/collective_rpc" in engine.paths) == (502, True, False)
        assert (await policy.post("/finish_weight_update", {"weight_version": "1"}))[0] == 200
        await policy.post("/resume")
        assert await policy.call_model() == (200, "/weights/sent")

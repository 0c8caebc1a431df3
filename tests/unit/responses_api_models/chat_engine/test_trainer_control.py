"""A trainer's control calls are serialized, and engines that hang or refuse do not keep model calls waiting."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import weight_update
from rollyard.responses_api_models.chat_engine.vllm_control import FORWARDED, GETS, POSTS
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.server.settings import parse_settings
from tests.support.checkpoint_run import active_urls
from tests.support.waiting import deadline_s, short_s, until
from tests.support.weight_engine import (
    ODD_STREAM,
    REFUSAL,
    STARTED,
    TrainerClient,
    WeightEngine,
    engine_url,
    log_prob,
    trainer_server,
)

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
        half.dead, checks_before = False, half.checks
        half.crashes_at.clear()
        await until(lambda: half.checks > checks_before + 4)
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
async def test_the_only_engine_always_stays_in_the_pool(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_update, "CHECK_INTERVAL_S", deadline_s())  # a check would abort the call: one attempt
    engine = WeightEngine()
    async with trainer_server(engine, max_attempts=1) as policy:
        engine.crashes_at.add(path)
        assert (await policy.update(NEW))[0] == 502
        assert active_urls(policy) == [engine_url(0)]
        engine.restart()
        assert (await policy.call_model())[0] == 200
        status, _ = await policy.update("/weights/next")
        assert (status, engine.weights, engine.paused) == (200, "/weights/next", False)


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
            lease = policy.server.trainer.lease
            before = lease._ends
            await policy.post(path, {"path": "/weights/new"} if "update" in path else {})
            assert (lease.length_s, lease._ends > before) == (60, True)


async def test_a_trainer_that_dies_during_an_update_causes_a_failure_that_names_the_reason() -> None:
    invalid_urls: list[str] = []

    class RecordingModel(VllmModel):
        def on_invalid_weights(self, url: str) -> None:
            invalid_urls.append(url)

    engine = WeightEngine()
    async with trainer_server(engine, kind=RecordingModel) as policy:
        await policy.update("/weights/one", version="a")
        await policy.post(f"/pause?lease_s={short_s()}")
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


VERSION = "x-rollyard-policy-version"


async def test_a_closed_endpoint_names_the_setting_that_opens_it() -> None:
    engine = WeightEngine()
    async with trainer_server(engine, trainer_endpoints=False, token=None) as policy:
        answers = {path: await policy.post(path, {"path": "/x"}) for path in (*FORWARDED, "/weights/update", *POSTS)}
        answers |= {path: await policy.get(path) for path in GETS}
    for path, (status, content) in answers.items():
        assert (status, "trainer_endpoints: true" in content["detail"]) == (404, True), path
        assert "policy_model" in content["detail"]
    assert engine.calls == []


async def test_a_server_without_a_run_token_is_refused() -> None:
    with pytest.raises(OperatorError, match="token"):
        async with trainer_server(WeightEngine(), token=None):
            pass


def test_settings_with_two_model_servers_are_refused() -> None:
    settings = {"base_url": engine_url(0), "model": "tiny", "trainer_endpoints": True, "replicas": 2}
    with pytest.raises(OperatorError, match=r"policy_model: trainer_endpoints .*replicas=2"):
        parse_settings(VllmModelSettings, settings, "policy_model")


async def test_a_caller_without_the_token_is_refused(engine: WeightEngine, policy: TrainerClient) -> None:
    for path in ("/tokenize", "/weights/update", "/pause"):
        status, _ = await policy.post(path, {"path": "/x"}, authorization="Bearer another")
        assert (status, engine.calls) == (401, []), path


async def test_a_forwarded_call_keeps_unknown_fields_its_query_and_the_bytes_of_the_response(
    engine: WeightEngine, policy: TrainerClient
) -> None:
    for path in FORWARDED:
        engine.answers[path] = (200, b' {"tokens": [1,  2], "odd": 1}\n')
        request = {"prompt": [1, 2], "odd": {"a": 1}, "model": "other"}
        answer, _ = await policy.send("POST", f"{path}?return=all&x=1", request, {"x-trace": "t"})
        assert engine.calls[-1] == (f"{path}?return=all&x=1", {"prompt": [1, 2], "odd": {"a": 1}, "model": "tiny"})
        assert (engine.headers[-1]["x-trace"], "authorization" in engine.headers[-1]) == ("t", False)
        assert (answer.status, answer.body, answer.headers[VERSION]) == (200, engine.answers[path][1], "0")


async def test_a_stream_is_forwarded_unchanged() -> None:
    for path in ["/v1/completions", "/inference/v1/generate"]:
        async with trainer_server(WeightEngine()) as policy:
            answer, _ = await policy.send("POST", path, {"prompt": [1], "stream": True})
        assert answer.body == ODD_STREAM
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers[VERSION] == "0"


async def test_a_control_call_reaches_every_engine_with_its_query_and_body() -> None:
    engines = [WeightEngine(), WeightEngine()]
    async with trainer_server(*engines) as policy:
        answer, content = await policy.send("POST", "/pause?mode=keep&clear_cache=false")
        await policy.post("/init_weight_transfer_engine", {"init_info": {"rank": 1}})
        engines[1].fails.add("/reset_prefix_cache")
        status, problem = await policy.post("/reset_prefix_cache")
    assert (status, [engine["status"] for engine in problem["engines"]]) == (502, [200, 500])
    assert "1 of 2 engines" in problem["detail"]
    for engine in engines:
        assert "/pause?mode=keep&clear_cache=false" in engine.paths
        assert ("/init_weight_transfer_engine", {"init_info": {"rank": 1}}) in engine.calls
    assert [one["url"] for one in content["engines"]] == [engine_url(0), engine_url(1)]
    assert [(one["status"], one["body"]) for one in content["engines"]] == [(200, {"status": "paused"})] * 2
    assert answer.headers[VERSION] == "0"


async def test_the_response_of_a_single_engine_is_returned_as_is(engine: WeightEngine, policy: TrainerClient) -> None:
    assert await policy.post("/pause") == (200, {"status": "paused"})
    assert (await policy.get("/is_paused"))[1]["is_paused"] is True
    engine.fails.add("/init_weight_transfer_engine")
    status, content = await policy.post("/init_weight_transfer_engine", {})
    assert (status, content) == (500, {"error": {"message": REFUSAL}})


async def test_unlisted_endpoints_are_not_forwarded(engine: WeightEngine, policy: TrainerClient) -> None:
    for path in ("/abort_requests", "/scale_elastic_ep", "/weight_checker", "/v1/embeddings"):
        assert (await policy.post(path, {}))[0] == 404
        assert path not in engine.paths


async def test_a_pause_that_lasts_too_long_causes_a_failure_that_says_how_to_end_it() -> None:
    async with trainer_server(WeightEngine(), request_timeout_s=0.05) as policy:
        await policy.post("/pause?mode=keep")
        status, detail = await policy.call_model()
        _, problem = await policy.post("/v1/chat/completions", {"messages": []})
    assert (status, "POST /resume" in detail) == (504, True)
    assert problem["type"] == "urn:rollyard:upstream_error"  # for training, a timeout would count with reward 0


async def send_weights(policy: Any, **finish: Any) -> list[int]:
    calls: list[tuple[str, Json]] = [
        ("/pause?mode=keep", {}),
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"names": ["a"]}}),
        ("/finish_weight_update", finish),
        ("/resume", {}),
    ]
    return [(await policy.post(path, body))[0] for path, body in calls]


@pytest.mark.parametrize(("finish", "version"), [({}, "1"), ({"weight_version": "step-3"}, "step-3")])
async def test_weights_sent_by_a_trainer_become_a_new_version_of_the_policy(finish: Json, version: str) -> None:
    engines = [WeightEngine(), WeightEngine()]
    async with trainer_server(*engines) as policy:
        assert await send_weights(policy, **finish) == [200] * 5
        assert await policy.call_model() == (200, "/weights/sent")
        assert await policy.version() == version
    assert [engine.label for engine in engines] == [version] * 2


async def test_engines_without_weights_do_not_resume() -> None:
    for path in ["/resume", "/wake_up", "/update_weight_version"]:
        engine = WeightEngine()
        async with trainer_server(engine) as policy:
            await policy.post("/pause?mode=keep")
            await policy.post("/start_weight_update")
            status, content = await policy.post(path, {"new_version": "1"})
            assert (status, "/finish_weight_update" in content["detail"]) == (409, True)
            assert (await policy.post("/finish_weight_update", {}))[0] == 200
            assert (await policy.post("/resume"))[0] == 200
            assert await policy.call_model() == (200, "/weights/sent")


async def test_weights_cannot_be_loaded_without_the_version_tracking(
    engine: WeightEngine, policy: TrainerClient
) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": "/x"}}
    status, content = await policy.post("/collective_rpc", body)
    assert (status, "POST /weights/update" in content["detail"]) == (400, True)
    assert (await policy.post("/collective_rpc", {"method": "take_from_my_trainer"}))[0] == 200
    assert (await policy.post("/update_weight_version", {"new_version": "7"}))[0] == 200
    assert await policy.version() == "7"
    assert engine.weights == STARTED


async def test_model_calls_stop_when_a_new_engine_cannot_load_weights_that_a_trainer_sent() -> None:
    engine, other = WeightEngine(), WeightEngine()
    async with trainer_server(engine) as policy:
        await send_weights(policy)
        policy.transport.mount("http://engine-1:1", other)
        await policy.server.trainer.register_engine(engine_url(1))
        assert (await policy.call_model())[0] == 503
        await send_weights(policy)
        assert (await policy.call_model())[0] == 200


async def test_calls_wait_for_sleeping_engines_but_not_for_engines_that_discarded_their_weights(
    policy: TrainerClient,
) -> None:
    await policy.post("/sleep?level=1")
    calling = asyncio.create_task(policy.call_model())
    await asyncio.sleep(0.02)
    assert not calling.done()
    await policy.post("/wake_up")
    assert await calling == (200, STARTED)
    await policy.post("/sleep?level=2")
    await policy.post("/wake_up")
    assert (await policy.call_model())[0] == 503


async def test_every_model_response_carries_the_policy_version_without_the_setting_too() -> None:
    paths = ("/v1/responses", "/v1/chat/completions")
    async with trainer_server(WeightEngine(), policy_version="sft", trainer_endpoints=False) as policy:
        answer, content = await policy.send("GET", "/policy_version")
        assert (answer.status, content, answer.headers[VERSION]) == (200, {"policy_version": "sft"}, "sft")
        for path, stream in itertools.product(paths, (False, True)):
            request = {"input": "hi", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
            url, body = f"http://policy:1{path}", orjson.dumps(request)
            answer = await policy.transport.send("POST", url, body, _headers(), deadline_s())
            assert (answer.status, answer.headers[VERSION]) == (200, "sft")


def _headers() -> dict[str, str]:
    return {"content-type": "application/json", "authorization": "Bearer the run's token"}


PATH = "/weights/log_probs"


async def test_every_engine_is_asked_and_the_version_is_that_of_its_weights() -> None:
    engines = WeightEngine(), WeightEngine()
    engines[1].offset = 0.5
    async with trainer_server(*engines) as policy:
        await policy.update("/weights/new", version="v1")
        status, answer = await policy.post(PATH, {"sequences": [[4, 5, 6], [7, 8]]})
        engines[0].dead = True
        _, without_one = await policy.post(PATH, {"sequences": [[4, 5]]})
        assert [one["url"] for one in without_one["engines"]] == active_urls(policy) == [engine_url(1)]
    assert (status, answer["version"]) == (200, "v1")
    for number, one in enumerate(answer["engines"]):
        assert one["url"] == engine_url(number)
        for row, ids in zip(one["sequences"], ([4, 5, 6], [7, 8]), strict=True):
            expected = [log_prob("/weights/new", token) + number * 0.5 for token in ids[1:]]
            assert (row["ids"], row["log_probs"]) == (ids, expected)


async def test_an_engine_with_lora_samples_tokens_instead() -> None:
    engine = WeightEngine()
    info = {"vllm_config": {"device_config": {"device": "cpu"}, "lora_config": {"max_lora_rank": 16}}}
    engine.answers["/server_info"] = (200, orjson.dumps(info))
    choice = {"token_ids": [8, 9], "logprobs": {"token_logprobs": [-1.5, -2.5]}}
    engine.answers["/v1/completions"] = (200, orjson.dumps({"choices": [choice]}))
    async with trainer_server(engine) as policy:
        _, answer = await policy.post(PATH, {"sequences": [[4, 5, 6, 7]]})
    assert answer["engines"][0]["sequences"] == [{"ids": [4, 5, 8, 9], "log_probs": [-1.5, -2.5]}]
    (asked,) = [body for path, body in engine.calls if path == "/v1/completions"]
    assert "prompt_logprobs" not in asked and asked["prompt"] == [4, 5]


async def test_weights_that_change_during_the_request_are_a_failure() -> None:
    engine = WeightEngine()
    engine.delayed["/v1/completions"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        reading = asyncio.create_task(policy.post(PATH, {"sequences": [[4, 5]]}))
        await until(lambda: "/v1/completions" in engine.paths)
        await policy.update("/weights/new", version="v1")
        engine.delayed.pop("/v1/completions").set()
        status, answer = await reading
        assert (status, "weights changed" in answer["detail"]) == (503, True)


async def test_what_is_not_a_list_of_sequences_is_refused() -> None:
    invalid: list[Any] = [None, [], [[]], [[1]], [["a", "b"]], [[1, -2]], [[True, 1]], [[1] * 70_000]]
    async with trainer_server(WeightEngine()) as policy:
        for sequences in invalid:
            status, answer = await policy.post(PATH, {"sequences": sequences})
            assert (status, "sequences: " in answer["detail"]) == (400, True), str(sequences)[:40]

"""New weights through the model server, on engines that lose theirs when a load fails: all engines or none."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.errors import Failure
from rollyard.services.types import Json
from tests.support.fixtures import until
from tests.support.weight_engine import STARTED, WeightEngine, engine_url, trainer_server

NEW = "/weights/step-12"
TORN = "/weights/torn"
UPDATE = [
    "/pause?mode=keep",
    "/update_weight_version",
    "/collective_rpc",
    "/reset_prefix_cache?reset_running_requests=true",
    "/update_weight_version",
    "/resume",
]


def during(engine: WeightEngine) -> list[str]:
    """What an update asked of it."""
    return [path for path in engine.paths if path in UPDATE]


async def test_an_update_reaches_every_engine_and_none_goes_on_before_all_have_loaded() -> None:
    first, second = WeightEngine(), WeightEngine()
    second.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(first, second) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/reset_prefix_cache?reset_running_requests=true" in first.paths)
        await asyncio.sleep(0.02)
        assert first.paused
        assert second.paused
        second.delayed["/collective_rpc"].set()
        status, said = await updating
    assert (status, {**said, "seconds": 0, "warnings": []}) == (
        200,
        {"version": "1", "previous": "0", "seconds": 0, "engines": 2, "warnings": []},
    )
    for engine in (first, second):
        assert during(engine) == UPDATE
        assert (engine.weights, engine.label, engine.paused) == (NEW, "1", False)


@pytest.mark.parametrize(
    ("before", "asked", "after"),
    [("7", {}, "8"), ("sft", {}, "step-12"), ("7", {"version": "a"}, "a"), ("7", {"version": 90}, "90")],
)
async def test_the_next_version_is_the_one_named_or_the_next_number_or_the_folders_name(
    before: str, asked: Json, after: str
) -> None:
    async with trainer_server(WeightEngine(), policy_version=before) as policy:
        _, said = await policy.update(NEW, **asked)
        assert (said["previous"], said["version"]) == (before, after)
        assert await policy.version() == after
        answer, _ = await policy.send("POST", "/v1/responses", {"input": "hi"})
    assert answer.headers["x-rollyard-policy-version"] == after


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": NEW, "version": ""},
        {"path": NEW, "version": "ü"},
        {"path": NEW, "version": "default"},
        {"path": NEW, "versoin": "1"},
        {"path": "relative"},
        {},
    ],
)
async def test_an_update_that_cannot_be_read_touches_nothing(wrong: Json) -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        status, said = await policy.post("/weights/update", wrong)
    assert (status, said["type"]) == (400, "urn:rollyard:bad_request")
    assert during(engine) == []


async def test_updates_that_come_at_the_same_time_follow_one_another() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        answers = await asyncio.gather(*(policy.update(f"/weights/{number}") for number in range(3)))
    assert sorted((said["previous"], said["version"]) for _, said in answers) == [("0", "1"), ("1", "2"), ("2", "3")]
    assert during(engine) == UPDATE * 3


async def test_where_one_engine_does_not_take_them_all_go_back_and_requests_in_flight_live() -> None:
    good, bad = WeightEngine(), WeightEngine()
    bad.delayed["/reset_prefix_cache"] = asyncio.Event()
    bad.fails.add("/reset_prefix_cache")
    async with trainer_server(good, bad) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: bad.weights == NEW)
        in_flight = [asyncio.create_task(engine.generate()) for engine in (good, bad)]
        await until(lambda: good.running == bad.running == 1)
        bad.delayed["/reset_prefix_cache"].set()
        await until(lambda: bad.paths.count("/reset_prefix_cache?reset_running_requests=true") == 2)
        status, said = await updating
        assert all(b'"stop"' in answer for answer in await asyncio.gather(*in_flight))
    assert status == 502
    assert "it does not want to" in said["detail"]
    assert [(engine.weights, engine.paused) for engine in (good, bad)] == [(STARTED, False)] * 2


async def test_a_failure_that_was_fixed_by_going_back_refuses_no_request() -> None:
    good, bad = WeightEngine(), WeightEngine()
    bad.fails_once.add("/reset_prefix_cache")
    async with trainer_server(good, bad) as policy:
        status, said = await policy.update(NEW)
        assert (status, await policy.version()) == (502, "0")
        assert [await policy.call_model() for _ in range(2)] == [(200, STARTED)] * 2
    assert "was rolled back, the policy stays version '0'" in said["detail"]
    assert (good.label, bad.label) == ("0", "0")


async def test_an_engine_that_loses_its_weights_shuts_the_gate_and_the_others_go_back() -> None:
    good, bad = WeightEngine(), WeightEngine(failing_folder=TORN)
    async with trainer_server(good, bad) as policy:
        await policy.update(NEW)
        status, said = await policy.update(TORN)
        refused, asked = await policy.call_model(), await policy.get("/policy_version")
    assert (good.weights, good.paused, bad.paused, bad.dead) == (NEW, False, False, False)
    difference = f"the policy is version '1', but {engine_url(1)} holds unknown weights"
    assert (status, f"failed: {difference}; {engine_url(1)} must be restarted: " in said["detail"]) == (502, True)
    assert "Worker failed with /weights/torn" in said["detail"]
    assert refused[0] == asked[0] == 503
    assert refused[1] == asked[1]["detail"]
    assert refused[1].startswith(f"model calls are rejected: {difference}")


async def test_weights_are_not_loaded_on_an_engine_that_lost_them_before() -> None:
    engine = WeightEngine(failing_folder=TORN)
    async with trainer_server(engine) as policy:
        await policy.update(TORN)
        status, said = await policy.update(NEW)
        assert (await policy.call_model())[0] == 503
    assert (status, "restart the engine, then update" in said["detail"]) == (502, True)
    assert engine.weights is None


async def test_an_engine_that_was_started_again_is_given_the_last_update_and_the_gate_opens() -> None:
    good, bad = WeightEngine(), WeightEngine(failing_folder=TORN)
    async with trainer_server(good, bad) as policy:
        await policy.update(NEW)
        await policy.update(TORN)
        bad.restart()
        assert [await policy.call_model() for _ in range(3)] == [(200, NEW)] * 3
        assert (bad.weights, bad.label, bad.paused) == (NEW, "1", False)


async def test_an_engine_that_was_started_again_before_any_update_needs_nothing_to_open_the_gate() -> None:
    engine = WeightEngine(failing_folder=TORN)
    async with trainer_server(engine) as policy:
        await policy.update(TORN)
        engine.restart()
        assert await policy.call_model() == (200, STARTED)
        assert await policy.version() == "0"


async def test_an_update_takes_an_engine_that_was_started_again() -> None:
    engine = WeightEngine(failing_folder=TORN)
    async with trainer_server(engine) as policy:
        await policy.update(TORN)
        engine.restart()
        assert (await policy.update(NEW))[0] == 200
        assert await policy.call_model() == (200, NEW)


async def test_who_starts_engines_is_told_of_one_that_lost_its_weights() -> None:
    told: list[str] = []

    class Own(VllmModel):
        def on_invalid_weights(self, url: str) -> None:
            told.append(url)
            self.upstream.replicas.remove(url)

    async with trainer_server(WeightEngine(), WeightEngine(failing_folder=TORN), kind=Own) as policy:
        assert (await policy.update(TORN))[0] == 502
        assert told == [engine_url(1)]
        assert await policy.call_model() == (200, STARTED)


async def test_a_request_in_flight_on_an_engine_that_lost_its_weights_ends_as_a_failure_and_the_engine_lives() -> None:
    engine = WeightEngine(failing_folder=TORN)
    async with trainer_server(engine, max_attempts=1) as policy:
        engine.hold_requests()
        calling = asyncio.create_task(policy.call_model())
        await until(lambda: engine.running == 1)
        assert (await policy.update(TORN))[0] == 502
        assert (await calling)[0] == 502  # the engine broke it off
        assert not engine.dead


async def test_engines_that_do_not_pause_are_left_as_they_are() -> None:
    good, bad = WeightEngine(), WeightEngine()
    bad.fails.add("/pause")
    async with trainer_server(good, bad) as policy:
        status, said = await policy.update(NEW)
        assert await policy.call_model() == (200, STARTED)
    assert (status, during(good)) == (502, ["/pause?mode=keep", "/resume"])
    assert said["detail"].startswith("nothing was changed; the policy stays at version '0'")


async def test_an_engine_without_control_endpoints_says_how_to_open_them() -> None:
    engine = WeightEngine()
    engine._control = lambda path, query, body: (404, {"detail": "Not Found"})  # type: ignore[method-assign]
    async with trainer_server(engine) as policy:
        assert "VLLM_SERVER_DEV_MODE=1" in (await policy.update(NEW))[1]["detail"]


async def test_an_engine_that_counts_no_versions_is_updated_all_the_same() -> None:
    async with trainer_server(WeightEngine(supports_labels=False)) as policy:
        assert (await policy.update(NEW))[0] == 200
        assert await policy.call_model() == (200, NEW)


async def test_an_update_is_brought_to_its_end_when_its_caller_hangs_up() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/collective_rpc" in engine.paths)
        updating.cancel()
        await asyncio.wait([updating])
        engine.delayed["/collective_rpc"].set()
        await policy.server.stop()
        assert (engine.weights, engine.paused, await policy.version()) == (NEW, False, "1")


async def test_model_calls_wait_for_an_update_and_are_answered_by_the_new_weights() -> None:
    engine = WeightEngine()
    engine.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(engine) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/collective_rpc" in engine.paths)
        calling = asyncio.create_task(policy.call_model())
        await asyncio.sleep(0.02)
        assert "/v1/chat/completions" not in engine.paths
        engine.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        assert await calling == (200, NEW)


async def test_an_answer_that_was_made_before_an_update_and_comes_during_it_is_good() -> None:
    engine = WeightEngine()
    engine.delayed.update({"/v1/chat/completions": asyncio.Event(), "/collective_rpc": asyncio.Event()})
    engine.answers["/v1/chat/completions"] = (200, b'{"choices": [{"message": {"content": "old"}}]}')
    async with trainer_server(engine) as policy:
        calling = asyncio.create_task(policy.call_model())
        await until(lambda: "/v1/chat/completions" in engine.paths)
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/collective_rpc" in engine.paths)
        engine.delayed["/v1/chat/completions"].set()
        await asyncio.sleep(0.02)
        engine.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        assert await calling == (200, "old")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_turn_that_spans_an_update_shows_both_versions(path: str) -> None:
    engine = WeightEngine()
    async with trainer_server(engine, return_token_id_information=True, logprobs_mode="raw_logprobs") as policy:
        engine.hold_requests()
        request = {"input": "hi", "messages": [{"role": "user", "content": "hi"}]}
        calling = asyncio.create_task(policy.send("POST", path, request))
        await until(lambda: engine.running == 1)
        await policy.update(NEW)
        answer, said = await calling
    last = said["choices"][0]["message"] if "choices" in said else said["output"][-1]
    sampling = last["token_trace"]["sampling"]
    assert (sampling["policy_version"], sampling["policy_version_end"]) == ("0", "1")
    assert answer.headers["x-rollyard-policy-version"] == "1"
    assert answer.headers["x-rollyard-policy-version-begun"] == "0"


async def test_a_turn_within_one_version_shows_that_one() -> None:
    async with trainer_server(WeightEngine(), return_token_id_information=True, logprobs_mode="raw_logprobs") as policy:
        await policy.update(NEW)
        answer, said = await policy.send("POST", "/v1/responses", {"input": "hi"})
    sampling = said["output"][-1]["token_trace"]["sampling"]
    assert sampling["policy_version"] == "1"
    assert "policy_version_end" not in sampling
    assert "x-rollyard-policy-version-begun" not in answer.headers


def test_the_engines_own_account_of_a_turn_is_kept_and_wins_over_ours() -> None:
    versions = PolicyVersions("0", is_exclusive=True)
    mark = versions.mark
    versions.advance("a", NEW)
    spans = [{"version": "default", "start": 0, "end": 9}, {"version": "a", "start": 9, "end": 12}]
    assert versions.sampled(mark, spans, None) == {
        "policy_version": "0",
        "policy_version_end": "a",
        "weight_versions": [{"version": "0", "start": 0, "end": 9}, {"version": "a", "start": 9, "end": 12}],
    }
    assert versions.sampled(mark, spans[1:], None)["policy_version"] == "a"


def test_tokens_of_weights_that_the_policy_did_not_have_are_a_failure_and_shut_the_gate() -> None:
    versions = PolicyVersions("0", is_exclusive=True)
    versions.advance("1", NEW)
    versions.hold(engine_url(0), "1")
    with pytest.raises(Failure, match=r"sampled with weights '0' while the policy was version '1'.*restarted"):
        versions.sampled(versions.mark, [{"version": "default", "start": 0, "end": 3}], engine_url(0))
    assert versions.difference([engine_url(0)])


def test_versions_of_another_project_are_noted_as_the_engine_gives_them() -> None:
    versions = PolicyVersions("0", ours=False)
    assert versions.sampled(0, [{"version": "x", "start": 0, "end": 3}], engine_url(0))["policy_version"] == "x"


async def test_a_new_engine_is_added_as_it_is_while_nothing_was_updated() -> None:
    engine, other = WeightEngine(), WeightEngine()
    async with trainer_server(engine) as policy:
        policy.transport.mount("http://engine-1:1", other)
        await policy.server.register_engine(engine_url(1))
        assert policy.server.upstream.replicas.urls == [engine_url(0), engine_url(1)]
        assert await policy.call_model() == (200, STARTED)
    assert "/collective_rpc" not in other.paths


async def test_a_new_engine_holds_the_policys_weights_before_it_is_asked_anything() -> None:
    engine, other = WeightEngine(), WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.update(NEW)
        policy.transport.mount("http://engine-1:1", other)
        await policy.server.register_engine(engine_url(1))
        assert [await policy.call_model() for _ in range(4)] == [(200, NEW)] * 4
    assert (other.weights, other.label) == (NEW, "1")
    assert "/v1/chat/completions" in other.paths


async def test_a_new_engine_that_does_not_take_the_weights_is_not_added() -> None:
    engine, other = WeightEngine(), WeightEngine(failing_folder=NEW)
    async with trainer_server(engine) as policy:
        await policy.update(NEW)
        policy.transport.mount("http://engine-1:1", other)
        with pytest.raises(Failure, match="Worker failed"):
            await policy.server.register_engine(engine_url(1))
        assert policy.server.upstream.replicas.urls == [engine_url(0)]
        assert await policy.call_model() == (200, NEW)


async def test_an_engine_that_is_gone_in_the_middle_of_an_update_takes_no_part_in_it() -> None:
    good, dying = WeightEngine(), WeightEngine()
    dying.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(good, dying) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/collective_rpc" in dying.paths)
        dying.fails.add("/collective_rpc")
        policy.server.upstream.replicas.remove(engine_url(1))
        dying.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        assert await policy.call_model() == (200, NEW)


async def test_a_server_that_was_restarted_goes_on_with_the_version_that_its_engines_hold() -> None:
    engine = WeightEngine()
    async with trainer_server(engine) as policy:
        await policy.update(NEW, version="step-12")
    async with trainer_server(engine) as policy:
        assert await policy.version() == "step-12"
        assert await policy.call_model() == (200, NEW)


async def test_a_server_that_finds_engines_with_different_weights_refuses_model_calls() -> None:
    one, two = WeightEngine(), WeightEngine()
    one.label = "step-12"
    async with trainer_server(one, two) as policy:
        status, why = await policy.call_model()
    assert (status, f"{engine_url(0)} holds 'step-12'" in why) == (503, True)


async def test_a_server_that_finds_an_update_broken_off_refuses_model_calls() -> None:
    engine = WeightEngine()
    engine.label = "changing"
    async with trainer_server(engine) as policy:
        assert (await policy.call_model())[0] == 503
        assert (await policy.update(NEW))[0] == 502
        engine.restart()
        assert (await policy.update(NEW))[0] == 200
        assert await policy.call_model() == (200, NEW)


async def test_a_server_that_finds_its_engine_paused_lets_it_go_on() -> None:
    engine = WeightEngine()
    engine.paused = True
    engine.hold_requests()
    async with trainer_server(engine) as policy:
        assert await policy.call_model() == (200, STARTED)

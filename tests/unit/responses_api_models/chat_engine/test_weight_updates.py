"""Weight updates reach all engines or none, although a failed load destroys an engine's weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import Failure, OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.policy_versions import PolicyVersions
from rollyard.responses_api_models.vllm_model.app import VllmModel
from tests.support.checkpoint_run import READ_ONLY_PATHS, CheckpointRun, active_urls
from tests.support.checkpoints import EMBEDDINGS, HEAD, SHAPES, write_checkpoint, write_tied_checkpoint
from tests.support.token_clients import TEXT_TURN, user_message
from tests.support.token_engine import TokenEngine
from tests.support.waiting import until
from tests.support.weight_engine import REFUSAL, STARTED, TrainerClient, WeightEngine, engine_url, trainer_server

NEW = "/weights/step-12"
BROKEN = "/weights/broken"
UPDATE = [
    "/pause?mode=keep",
    "/update_weight_version",
    "/collective_rpc",
    "/reset_prefix_cache?reset_running_requests=true",
    "/update_weight_version",
    "/resume",
]


def update_calls(engine: WeightEngine) -> list[str]:
    return [path for path in engine.paths if path in UPDATE]


async def test_an_update_reaches_every_engine_and_none_resumes_before_all_have_loaded() -> None:
    first, second = WeightEngine(), WeightEngine()
    second.delayed["/collective_rpc"] = asyncio.Event()
    async with trainer_server(first, second) as policy:
        updating = asyncio.create_task(policy.update(NEW))
        await until(lambda: "/reset_prefix_cache?reset_running_requests=true" in first.paths)
        await asyncio.sleep(0.02)
        assert first.paused and second.paused
        second.delayed["/collective_rpc"].set()
        status, content = await updating
    assert (status, {**content, "seconds": 0, "warnings": []}) == (
        200,
        {"version": "1", "previous": "0", "seconds": 0, "engines": 2, "warnings": []},
    )
    for engine in (first, second):
        assert update_calls(engine) == UPDATE
        assert (engine.weights, engine.label, engine.paused) == (NEW, "1", False)


async def test_the_new_version_is_the_given_one_or_the_next_number_or_the_folder_name() -> None:
    cases: list[tuple[str, Json, str]] = [
        ("7", {}, "8"),
        ("sft", {}, "step-12"),
        ("7", {"version": "a"}, "a"),
        ("7", {"version": 90}, "90"),
    ]
    for before, fields, after in cases:
        async with trainer_server(WeightEngine(), policy_version=before) as policy:
            _, content = await policy.update(NEW, **fields)
            assert (content["previous"], content["version"]) == (before, after)
            assert await policy.version() == after
            answer, _ = await policy.send("POST", "/v1/responses", {"input": "hi"})
        assert answer.headers["x-rollyard-policy-version"] == after


async def test_a_failed_update_rolls_back_all_engines_and_keeps_requests_in_flight() -> None:
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
        status, content = await updating
        assert all(b'"stop"' in answer for answer in await asyncio.gather(*in_flight))
    assert status == 502
    assert REFUSAL in content["detail"]
    assert [(engine.weights, engine.paused) for engine in (good, bad)] == [(STARTED, False)] * 2


class NotifiedModel(VllmModel):
    invalid_urls: list[str]

    def on_invalid_weights(self, url: str) -> None:
        self.invalid_urls.append(url)


async def test_an_engine_that_loses_its_weights_blocks_model_calls_and_the_others_roll_back() -> None:
    good, bad = WeightEngine(), WeightEngine(failing_folder=BROKEN)
    NotifiedModel.invalid_urls = []
    async with trainer_server(good, bad, kind=NotifiedModel) as policy:
        await policy.update(NEW)
        status, content = await policy.update(BROKEN)
        refused, version = await policy.call_model(), await policy.get("/policy_version")
    assert NotifiedModel.invalid_urls == [engine_url(1)]
    assert (good.weights, good.paused, bad.paused, bad.dead) == (NEW, False, False, False)
    difference = f"the policy's version is '1', but {engine_url(1)} has unknown weights"
    assert (status, f"failed: {difference}; {engine_url(1)} must be restarted: " in content["detail"]) == (502, True)
    assert "Worker failed with /weights/broken" in content["detail"]
    assert refused[0] == version[0] == 503
    assert refused[1] == version[1]["detail"]
    assert difference in refused[1]


async def test_a_request_in_flight_on_an_engine_that_lost_its_weights_fails_without_killing_the_engine() -> None:
    engine = WeightEngine(failing_folder=BROKEN)
    async with trainer_server(engine, max_attempts=1) as policy:
        engine.hold_requests()
        calling = asyncio.create_task(policy.call_model())
        await until(lambda: engine.running == 1)
        assert (await policy.update(BROKEN))[0] == 502
        assert (await calling)[0] == 502  # the engine aborted it
        assert not engine.dead


async def test_an_engine_without_control_endpoints_causes_an_error_that_says_how_to_enable_them() -> None:
    engine = WeightEngine()
    engine._control = lambda path, query, body: (404, {"detail": "Not Found"})  # type: ignore[method-assign]
    async with trainer_server(engine) as policy:
        assert "VLLM_SERVER_DEV_MODE=1" in (await policy.update(NEW))[1]["detail"]


async def test_an_engine_without_version_labels_is_updated_too() -> None:
    async with trainer_server(WeightEngine(supports_labels=False)) as policy:
        assert (await policy.update(NEW))[0] == 200
        assert await policy.call_model() == (200, NEW)


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


async def test_a_turn_that_spans_an_update_shows_both_versions() -> None:
    engine = WeightEngine()
    async with trainer_server(engine, return_token_id_information=True, logprobs_mode="raw_logprobs") as policy:
        engine.hold_requests()
        calling = asyncio.create_task(policy.send("POST", "/v1/responses", {"input": "hi"}))
        await until(lambda: engine.running == 1)
        await policy.update(NEW)
        answer, content = await calling
    sampling = content["output"][-1]["token_trace"]["sampling"]
    assert (sampling["policy_version"], sampling["policy_version_end"]) == ("0", "1")
    assert answer.headers["x-rollyard-policy-version"] == "1"
    assert answer.headers["x-rollyard-policy-version-begun"] == "0"


def test_tokens_sampled_with_unexpected_weights_cause_a_failure_and_block_model_calls() -> None:
    versions = PolicyVersions("0", is_exclusive=True)
    versions.advance("1", NEW)
    versions.hold(engine_url(0), "1")
    with pytest.raises(Failure, match=r"weights '0' .*version was '1'"):
        versions.sampled(versions.mark, [{"version": "default", "start": 0, "end": 3}], engine_url(0))
    assert versions.difference([engine_url(0)])


async def test_a_new_engine_that_fails_to_load_the_weights_is_not_added() -> None:
    engine, other = WeightEngine(), WeightEngine(failing_folder=NEW)
    async with trainer_server(engine) as policy:
        await policy.update(NEW)
        policy.transport.mount("http://engine-1:1", other)
        with pytest.raises(Failure, match="Worker failed"):
            await policy.server.trainer.register_engine(engine_url(1))
        assert policy.server.upstream.replicas.urls == [engine_url(0)]
        assert await policy.call_model() == (200, NEW)


async def test_a_server_with_engines_of_different_weights_refuses_model_calls() -> None:
    one, two = WeightEngine(), WeightEngine()
    one.label = "step-12"
    async with trainer_server(one, two) as policy:
        status, detail = await policy.call_model()
    assert (status, f"{engine_url(0)} has 'step-12'" in detail) == (503, True)


async def test_a_server_that_starts_after_an_aborted_update_refuses_model_calls() -> None:
    engine = WeightEngine()
    engine.label = "changing"
    async with trainer_server(engine) as policy:
        assert (await policy.call_model())[0] == 503
        assert (await policy.update(NEW))[0] == 502
        engine.restart()
        assert (await policy.update(NEW))[0] == 200
        assert await policy.call_model() == (200, NEW)


async def test_an_invalid_checkpoint_is_refused_before_any_engine_is_asked(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path, engines=2)
    without_head = {name: shape for name, shape in SHAPES.items() if name != HEAD}
    async with run.serve() as policy:
        for folder in (str(tmp_path / "nwe"), write_checkpoint(tmp_path / "new", without_head)):
            status, content = await policy.update(folder)
            assert (status, "\n" in content["detail"]) == (400, False)
            assert await policy.version() == "0"
            assert await policy.call_model() == (200, run.base)
    assert all(set(engine.paths) <= READ_ONLY_PATHS for engine in run.engines)


VERSIONS: list[Any] = [True, 1.5, "", " ", " a", "a\n", "ü", [], {}, "default", "changing", "x" * 201]
INVALID: list[Json] = [{"path": NEW, "versoin": "1"}, {"path": "relative"}, {"path": NEW, "kind": "delta"}, {}]


async def test_an_invalid_request_reaches_no_engine(engine: WeightEngine, policy: TrainerClient) -> None:
    for request in (*INVALID, *({"path": NEW, "version": version} for version in VERSIONS)):
        status, content = await policy.post("/weights/update", request)
        assert (status, content["type"]) == (400, "urn:rollyard:bad_request"), request
    assert set(engine.paths) <= READ_ONLY_PATHS


async def test_an_update_while_all_engines_start_is_refused_and_can_be_repeated(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    async with run.serve() as policy:
        policy.server.trainer.gone(engine_url(0))
        status, content = await policy.update(run.new_checkpoint(1))
        assert (status, "no engine" in content["detail"]) == (503, True)
        await policy.server.trainer.register_engine(engine_url(0))
        assert (await policy.update(run.new_checkpoint(1)))[0] == 200


async def test_an_engine_that_comes_up_during_an_update_gets_the_new_weights(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path, engines=2)
    good, late = run.engines
    good.delayed["/collective_rpc"] = asyncio.Event()
    async with run.serve() as policy:
        policy.server.trainer.gone(engine_url(1))
        updating = asyncio.create_task(policy.update(run.new_checkpoint(1)))
        await until(lambda: "/collective_rpc" in good.paths)
        registering = asyncio.create_task(policy.server.trainer.register_engine(engine_url(1)))
        await asyncio.sleep(0.02)
        assert active_urls(policy) == [engine_url(0)]
        good.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        await registering
        assert (len(active_urls(policy)), late.weights, late.label) == (2, str(tmp_path / "step-1"), "1")


CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SEEDED: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {**CHAT, "seed": 0}),
    ("/v1/responses", {"input": "hi", "metadata": {"extra_body": '{"seed": 7}'}}),
    ("/v1/completions", {"prompt": [1], "seed": 7}),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"seed": 7}}),
    ("/inference/v1/generate", {"token_ids": [1], "seed": None, "sampling_params": {"seed": 7}}),
]


@pytest.mark.parametrize(
    ("write", "device", "status"),
    [(write_tied_checkpoint, "cpu", 400), (write_tied_checkpoint, "cuda", 200), (write_checkpoint, "cpu", 200)],
)
async def test_new_weights_for_a_tied_model_are_refused_on_a_cpu(
    tmp_path: Path, write: Any, device: str, status: int
) -> None:
    engine = WeightEngine(root=write(tmp_path / "base"), device=device)
    async with trainer_server(engine, weights_check="values") as policy:
        assert (await policy.get("/weights"))[1]["on_cpu"] is (device == "cpu")
        update_status, content = await policy.update(write(tmp_path / "new", seed=1))
        assert update_status == status
        if status == 400:
            assert "output head" in content["detail"]
            await policy.post("/pause")
            assert (await policy.post("/start_weight_update", {}))[0] == 400
            assert engine.weights == str(tmp_path / "base")


async def test_a_seeded_request_is_refused_where_weights_may_be_updated_on_a_cpu() -> None:
    engine = WeightEngine(device="cpu")
    async with trainer_server(engine) as policy:
        for path, body in SEEDED:
            asked = engine.paths.count(path)
            status, content = await policy.post(path, body)
            assert (status, "seed" in content["detail"], engine.paths.count(path)) == (400, True, asked)
            assert await policy.call_model() == (200, STARTED)


async def test_a_seeded_request_is_answered_everywhere_else() -> None:
    elsewhere: list[Json] = [{"device": "cuda"}, {"trainer_endpoints": False}, {"sampling_overrides": {"seed": None}}]
    for settings in elsewhere:
        more = {name: value for name, value in settings.items() if name != "device"}
        engine = WeightEngine(device=settings.get("device", "cpu"))
        async with trainer_server(engine, **more) as policy:
            for path, body in SEEDED[:2]:
                assert (await policy.post(path, body))[0] == 200


async def test_settings_that_seed_every_request_are_refused_at_startup() -> None:
    seeded: list[Json] = [{"extra_body": {"seed": 1}}, {"sampling_overrides": {"seed": 0}}]
    for settings in seeded:
        with pytest.raises(OperatorError, match="found seed"):
            async with trainer_server(WeightEngine(device="cpu"), **settings):
                pass


async def test_the_device_of_an_engine_that_was_down_at_startup_is_found_out_later(tmp_path: Path) -> None:
    engine = WeightEngine(root=write_tied_checkpoint(tmp_path / "base"), device="cpu")
    engine.dead = True
    async with trainer_server(engine, weights_check="values") as policy:
        engine.dead = False
        assert (await policy.post(*SEEDED[0]))[0] == 400
        assert (await policy.update(write_tied_checkpoint(tmp_path / "new", seed=1)))[0] == 400
        assert engine.weights == str(tmp_path / "base")


class TokensOnCpu(TokenEngine):
    def _answers(self, path: str) -> Callable[[Json], Json]:
        known: dict[str, Json] = {"/server_info": {"vllm_config": {"device_config": {"device": "cpu"}}}}
        return (lambda body: known[path]) if path in known else super()._answers(path)


async def test_the_servers_own_requests_have_no_seed_where_weights_may_be_updated_on_a_cpu() -> None:
    engine = TokensOnCpu([TEXT_TURN])
    async with trainer_server(engine, return_token_id_information=True) as policy:
        assert (await policy.post("/token_check", {"samples": 3}))[0] == 200
        assert (await policy.post("/v1/chat/completions", {"messages": [user_message("<|im_end|>")]}))[0] == 200
    bodies = [body for _, body in engine.requests]
    assert len(bodies) > 20
    assert [body for body in bodies if body.get("seed") is not None] == []


class WithoutIds(TokensOnCpu):
    def _answers(self, path: str) -> Callable[[Json], Json]:
        answers = super()._answers(path)
        return lambda body: {key: value for key, value in answers(body).items() if key != "prompt_token_ids"}


async def test_a_token_check_of_an_engine_that_answers_without_ids_fails_as_its_malformed_answer() -> None:
    async with trainer_server(WithoutIds([TEXT_TURN]), return_token_id_information=True) as policy:
        status, error = await policy.post("/token_check", {"samples": 1})
    assert (status, error["code"]) == (502, "malformed_answer")


async def test_updates_and_status_report_the_fingerprint_and_every_turn_records_it(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    async with run.serve(return_token_id_information=True, logprobs_mode="raw_logprobs") as policy:
        started = (await policy.get("/weights"))[1]
        status, content = await policy.update(run.new_checkpoint(1), version="step-1")
        current = (await policy.get("/weights"))[1]
        turn = (await policy.post("/v1/responses", {"input": "hi"}))[1]["output"][-1]
    assert (status, content["path"], content["fingerprint"]) == (200, str(tmp_path / "step-1"), current["fingerprint"])
    assert (started["version"], started["path"], current["version"], current["path"]) == (
        "0",
        run.base,
        "step-1",
        content["path"],
    )
    assert started["fingerprint"] not in (None, current["fingerprint"])
    assert current["engines"] == [{"url": engine_url(0), "version": "step-1"}]
    sampling = turn["token_trace"]["sampling"]
    assert (sampling["policy_version"], sampling["policy_fingerprint"]) == ("step-1", content["fingerprint"])


async def test_a_version_keeps_its_files_and_the_same_files_may_be_loaded_again(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    async with run.serve() as policy:
        first = run.new_checkpoint(1)
        assert [(await policy.update(first, version="a"))[0] for _ in range(2)] == [200, 200]
        run.engines[0].calls.clear()
        status, content = await policy.update(run.new_checkpoint(2), version="a")
        assert (status, set(run.engines[0].paths) <= READ_ONLY_PATHS) == (409, True)
        assert "'a'" in content["detail"]
        assert (await policy.update(run.base, version="0"))[0] == 200
        assert await policy.call_model() == (200, run.base)


@pytest.mark.parametrize("path", ["/finish_weight_update", "/update_weight_version"])
async def test_weights_that_arrive_another_way_cannot_reuse_a_version(tmp_path: Path, path: str) -> None:
    run = CheckpointRun(tmp_path)
    async with run.serve() as policy:
        await policy.update(run.new_checkpoint(1), version="a")
        await policy.update(run.new_checkpoint(2), version="b")
        await policy.post("/pause")
        field = "weight_version" if path == "/finish_weight_update" else "new_version"
        assert (await policy.post(path, {field: "a"}))[0] == 409
        assert (await policy.post(path, {field: "c"}))[0] == 200


async def test_a_restarted_engine_does_not_load_changed_files_under_the_old_version(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path, engines=2)
    good, other = run.engines
    async with run.serve() as policy:
        await policy.update(run.overwrite_checkpoint(1), version="a")
        run.overwrite_checkpoint(2)
        other.dead = True
        policy.server.trainer.gone(engine_url(1))
        other.restart()
        other.calls.clear()
        await policy.server.trainer.register_engine(engine_url(1))
        assert (active_urls(policy), "/collective_rpc" in other.paths) == ([engine_url(0)], False)
        assert [await policy.call_model() for _ in range(4)] == [(200, str(tmp_path / "latest"))] * 4
        assert (await policy.update(str(tmp_path / "latest"), version="b"))[0] == 200
        await until(lambda: len(active_urls(policy)) == 2)
        assert (good.label, other.label) == ("b", "b")


@pytest.mark.parametrize("what", ["changed", "gone"])
async def test_calls_to_a_single_engine_with_changed_files_are_refused_until_the_next_update(
    tmp_path: Path, what: str
) -> None:
    run = CheckpointRun(tmp_path)
    (engine,) = run.engines
    async with run.serve() as policy:
        await policy.update(run.overwrite_checkpoint(1), version="a")
        if what == "gone":
            (tmp_path / "latest").rename(tmp_path / "elsewhere")
        else:
            run.overwrite_checkpoint(2)
        policy.server.trainer.gone(engine_url(0))
        engine.restart()
        await policy.server.trainer.register_engine(engine_url(0))
        status, detail = await policy.call_model()
        assert (status, "version 'a'" in detail, engine.weights) == (503, True, run.base)
        assert "version 'a'" in (await policy.get("/weights"))[1]["difference"]
        assert (await policy.update(run.new_checkpoint(3), version="b"))[0] == 200
        assert await policy.call_model() == (200, str(tmp_path / "step-3"))


async def test_an_announced_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    (engine,) = run.engines
    async with run.serve() as policy:
        await policy.post("/pause")
        await policy.post("/start_weight_update", {})
        announced: Json = {"update_info": {"names": [EMBEDDINGS, "joined"], "shapes": [[9, 4], [1]]}}
        status, content = await policy.post("/update_weights", announced)
        assert (status, EMBEDDINGS in content["detail"], "/update_weights" in engine.paths) == (400, True, False)
        announced["update_info"]["shapes"][0] = [8, 4]
        assert (await policy.post("/update_weights", announced))[0] == 200


@pytest.mark.parametrize("endpoints", [True, False])
@pytest.mark.parametrize("how", ["files", "link"])
async def test_a_first_version_whose_folder_changed_is_refused(tmp_path: Path, how: str, endpoints: bool) -> None:
    run = CheckpointRun(tmp_path)
    (engine,) = run.engines
    write_checkpoint(tmp_path / "other", seed=5)
    if how == "link":
        (tmp_path / "link").symlink_to(run.base)
        engine.root = str(tmp_path / "link")
    async with run.serve(trainer_endpoints=endpoints) as policy:
        if not endpoints:
            policy.server.trainer.gone(engine_url(0))
            await policy.server.trainer.register_engine(engine_url(0))
        assert (await policy.call_model())[0] == 200
        if how == "link":
            (tmp_path / "link").unlink()
            (tmp_path / "link").symlink_to(tmp_path / "other")
        else:
            write_checkpoint(tmp_path / "base", seed=5)
        policy.server.trainer.gone(engine_url(0))
        engine.restart()
        await policy.server.trainer.register_engine(engine_url(0))
        status, detail = await policy.call_model()
        assert (status, "version '0'" in detail) == (503, True)


async def test_a_link_is_resolved_once_and_all_engines_load_the_same_folder(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path, engines=2)
    link = tmp_path / "latest"
    link.symlink_to(run.new_checkpoint(1))

    def point_elsewhere() -> None:
        link.unlink()
        link.symlink_to(tmp_path / "step-2")

    run.new_checkpoint(2)
    run.engines[0].on_load = lambda: point_elsewhere() if link.readlink().name == "step-1" else None
    async with run.serve(policy_version="sft") as policy:
        status, content = await policy.update(str(link))
        assert (status, content["version"], content["path"]) == (200, "step-1", str(tmp_path / "step-1"))
    assert {engine.weights for engine in run.engines} == {str(tmp_path / "step-1")}


async def test_files_that_change_while_engines_load_them_are_rolled_back(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path, engines=2)
    async with run.serve() as policy:
        folder = run.overwrite_checkpoint(1)
        run.engines[1].on_load = lambda: run.overwrite_checkpoint(2) if run.engines[1].weights == folder else None
        status, content = await policy.update(folder)
        assert (status, folder in content["detail"], "rolled back" in content["detail"]) == (502, True, True)
        assert await policy.call_model() == (200, run.base)
    assert {(engine.weights, engine.label, engine.paused) for engine in run.engines} == {(run.base, "0", False)}


async def test_files_that_change_while_an_engine_reloads_them_get_no_version(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    (engine,) = run.engines
    async with run.serve() as policy:
        await policy.update(run.overwrite_checkpoint(1), version="a")
        policy.server.trainer.gone(engine_url(0))
        engine.restart()
        engine.on_load = lambda: run.overwrite_checkpoint(2)
        await policy.server.trainer.register_engine(engine_url(0))
        status, detail = await policy.call_model()
        assert (status, str(tmp_path / "latest") in detail, engine.label) == (503, True, "changing")


async def test_files_that_change_between_the_check_and_the_load_reach_no_engine(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    (engine,) = run.engines
    engine.delayed["/pause"] = asyncio.Event()
    async with run.serve() as policy:
        updating = asyncio.create_task(policy.update(run.overwrite_checkpoint(1)))
        await until(lambda: "/pause?mode=keep" in engine.paths)
        run.overwrite_checkpoint(2)
        engine.delayed["/pause"].set()
        status, content = await updating
        assert (status, "nothing was changed" in content["detail"]) == (409, True)
        assert (engine.weights, engine.paused, "/collective_rpc" in engine.paths) == (run.base, False, False)

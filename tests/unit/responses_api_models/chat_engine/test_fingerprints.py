"""One version is one set of files: whatever happens to a folder, no engine serves other weights under its version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollyard.records.types import Json
from tests.support.checkpoint_run import READ_ONLY_PATHS, CheckpointRun, active_urls
from tests.support.checkpoints import EMBEDDINGS, write_checkpoint
from tests.support.waiting import until
from tests.support.weight_engine import engine_url


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


async def test_a_restart_behind_the_same_address_is_noticed_without_a_call(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    async with run.serve() as policy:
        await policy.update(run.overwrite_checkpoint(1), version="a")
        run.engines[0].restart()
        await until(lambda: run.engines[0].label == "a")
        assert await policy.call_model() == (200, str(tmp_path / "latest"))


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

"""Invalid updates are refused before any engine is asked, and an update can be repeated once engines are back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.checkpoint_run import READ_ONLY_PATHS, CheckpointRun, active_urls
from tests.support.checkpoints import EMBEDDINGS, HEAD, SHAPES, overwrite_element, write_checkpoint
from tests.support.waiting import until
from tests.support.weight_engine import engine_url

WEIGHTS_FILE = "model.safetensors"


def _missing(folder: Path) -> str:
    return str(folder / "nwe")


def _without_head(folder: Path) -> str:
    return write_checkpoint(folder / "new", {name: shape for name, shape in SHAPES.items() if name != HEAD})


def _with_a_nan(folder: Path) -> str:
    write_checkpoint(folder / "new", seed=1, dtype="F32")
    overwrite_element(folder / "new" / WEIGHTS_FILE, EMBEDDINGS, b"\x00\x00\xc0\x7f")
    return str(folder / "new")


def _cut_short(folder: Path) -> str:
    path = Path(write_checkpoint(folder / "new"))
    (path / WEIGHTS_FILE).write_bytes((path / WEIGHTS_FILE).read_bytes()[:-1])
    return str(path)


def _another_model(folder: Path) -> str:
    return write_checkpoint(folder / "new", {**SHAPES, EMBEDDINGS: [9, 4]})


async def test_an_invalid_checkpoint_is_refused_before_any_engine_is_asked(tmp_path: Path) -> None:
    for make in [_missing, _without_head, _with_a_nan, _cut_short, _another_model]:
        run = CheckpointRun(tmp_path, engines=2)
        async with run.serve() as policy:
            folder = make(tmp_path)
            status, content = await policy.update(folder)
            assert (status, "\n" in content["detail"]) == (400, False)
            assert await policy.version() == "0"
            assert await policy.call_model() == (200, run.base)
        assert all(set(engine.paths) <= READ_ONLY_PATHS for engine in run.engines)


async def test_an_invalid_version_is_refused(tmp_path: Path) -> None:
    versions: list[Any] = [True, 1.5, "", " ", " a", "a\n", "ü", [], {}, "default", "changing", "x" * 201]
    run = CheckpointRun(tmp_path)
    async with run.serve() as policy:
        folder = run.new_checkpoint(1)
        for version in versions:
            assert (await policy.update(folder, version=version))[0] == 400, version
    assert set(run.engines[0].paths) <= READ_ONLY_PATHS


async def test_a_checkpoint_without_write_permission_is_loaded(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    folder = Path(run.new_checkpoint(1))
    for file in (*folder.iterdir(), folder):
        file.chmod(0o555)
    async with run.serve() as policy:
        assert (await policy.update(str(folder)))[0] == 200
    folder.chmod(0o755)


async def test_an_update_while_all_engines_start_is_refused_and_can_be_repeated(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path)
    async with run.serve() as policy:
        policy.server.gone(engine_url(0))
        status, content = await policy.update(run.new_checkpoint(1))
        assert (status, "no engine" in content["detail"]) == (503, True)
        await policy.server.register_engine(engine_url(0))
        assert (await policy.update(run.new_checkpoint(1)))[0] == 200


async def test_an_engine_that_comes_up_during_an_update_gets_the_new_weights(tmp_path: Path) -> None:
    run = CheckpointRun(tmp_path, engines=2)
    good, late = run.engines
    good.delayed["/collective_rpc"] = asyncio.Event()
    async with run.serve() as policy:
        policy.server.gone(engine_url(1))
        updating = asyncio.create_task(policy.update(run.new_checkpoint(1)))
        await until(lambda: "/collective_rpc" in good.paths)
        registering = asyncio.create_task(policy.server.register_engine(engine_url(1)))
        await asyncio.sleep(0.02)
        assert active_urls(policy) == [engine_url(0)]
        good.delayed["/collective_rpc"].set()
        assert (await updating)[0] == 200
        await registering
        assert (len(active_urls(policy)), late.weights, late.label) == (2, str(tmp_path / "step-1"), "1")

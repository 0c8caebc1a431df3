"""LoRA adapters as versions of the policy: no turn is sampled with another adapter than the policy's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from rollyard.responses_api_models.chat_engine import weight_update
from tests.support.adapter_engine import AdapterEngine, write_adapter
from tests.support.checkpoints import write_checkpoint
from tests.support.waiting import until
from tests.support.weight_engine import STARTED, TrainerClient, trainer_server

ONE, TWO = "/adapters/one", "/adapters/two"


@pytest.fixture
def engine() -> AdapterEngine:
    return AdapterEngine()


async def publish(policy: TrainerClient, folder: str, version: str) -> int:
    status, answer = await policy.update(folder, version=version, kind="adapter")
    assert status == 200, answer
    return int(answer["engines"])


async def test_every_engine_samples_with_the_newest_adapter_and_unloads_the_old_one() -> None:
    engines = AdapterEngine(), AdapterEngine()
    async with trainer_server(*engines) as policy:
        assert await policy.call_model() == (200, STARTED)
        for version, folder in (("v1", ONE), ("v2", TWO)):
            assert await publish(policy, folder, version) == 2
            assert [await policy.call_model() for _ in range(4)] == [(200, folder)] * 4
            assert [engine.adapters for engine in engines] == [{f"adapter:{version}": folder}] * 2
            assert [engine.label for engine in engines] == [version] * 2
        status = (await policy.get("/weights"))[1]
        assert (status["version"], status["kind"], status["path"]) == ("v2", "adapter", TWO)
        await policy.post("/weights/log_probs", {"sequences": [[1, 2]]})
    (asked,) = [body for path, body in engines[0].calls if path == "/v1/completions"]
    assert asked["model"] == "adapter:v2" and "prompt_logprobs" not in asked


async def test_requests_in_flight_end_with_the_old_adapter_before_the_new_one_is_loaded(
    engine: AdapterEngine, policy: TrainerClient
) -> None:
    await publish(policy, ONE, "v1")
    engine.hold_requests()
    calling = asyncio.create_task(policy.call_model())
    await until(lambda: engine.running == 1)
    updating = asyncio.create_task(publish(policy, TWO, "v2"))
    await until(lambda: "/pause?mode=wait" in engine.paths[-1:])
    assert engine.adapters == {"adapter:v1": ONE}
    engine._going.set()
    assert (await calling, await updating) == ((200, ONE), 1)
    assert await policy.call_model() == (200, TWO)


async def test_requests_that_take_too_long_are_aborted_and_repeated_with_the_new_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_update, "DRAIN_S", 0.05)
    engine = AdapterEngine()
    async with trainer_server(engine) as policy:
        await publish(policy, ONE, "v1")
        engine.hold_requests()
        calling = asyncio.create_task(policy.call_model())
        await until(lambda: engine.running == 1)
        await publish(policy, TWO, "v2")
        assert await calling == (200, TWO)


async def test_an_adapter_that_the_engine_refuses_leaves_the_previous_version(
    engine: AdapterEngine, policy: TrainerClient
) -> None:
    engine.failing_adapter = ONE
    status, answer = await policy.update(ONE, version="v1", kind="adapter")
    assert (status, "max_lora_rank" in answer["detail"], "--enable-lora" in answer["detail"]) == (502, True, True)
    assert await policy.call_model() == (200, STARTED)
    engine.failing_adapter = TWO
    await publish(policy, ONE, "v1b")
    assert (await policy.update(TWO, version="v2", kind="adapter"))[0] == 502
    assert (await policy.call_model(), await policy.version()) == ((200, ONE), "v1b")


async def test_a_restarted_engine_gets_the_newest_adapter(engine: AdapterEngine, policy: TrainerClient) -> None:
    await publish(policy, ONE, "v1")
    await publish(policy, TWO, "v2")
    engine.restart()
    assert (await policy.call_model())[1] != STARTED
    await until(lambda: engine.adapters == {"adapter:v2": TWO})
    assert await policy.call_model() == (200, TWO)


async def test_a_restarted_server_continues_with_the_adapter_of_its_engines() -> None:
    engine = AdapterEngine()
    async with trainer_server(engine) as policy:
        await publish(policy, ONE, "v1")
    async with trainer_server(engine) as policy:
        assert (await policy.version(), await policy.call_model()) == ("v1", (200, ONE))
        await publish(policy, TWO, "v2")
        assert engine.adapters == {"adapter:v2": TWO}


async def test_merged_weights_replace_an_adapter_and_an_adapter_cannot_replace_them(
    engine: AdapterEngine, policy: TrainerClient
) -> None:
    await publish(policy, ONE, "v1")
    assert (await policy.update("/weights/merged", version="v2"))[0] == 200
    assert (engine.adapters, await policy.call_model()) == ({}, (200, "/weights/merged"))
    status, answer = await policy.update(TWO, version="v3", kind="adapter")
    assert (status, "publish merged weights" in answer["detail"]) == (409, True)


def without_adapter_config(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()


def of_another_method(folder: Path) -> None:
    (folder / "adapter_config.json").write_bytes(orjson.dumps({"peft_type": "IA3"}))


def with_nan(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + np.float32("nan").tobytes())


def not_low_rank(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"lora_B.weight", b"lora_m.weight"))


@pytest.mark.parametrize(
    ("written", "spoil", "words"),
    [
        ({}, without_adapter_config, "adapter_config.json cannot be read"),
        ({}, of_another_method, "peft_type is 'IA3'"),
        ({"width": 6}, bool, "is for a different model"),
        ({"module": "base_model.model.model.other"}, bool, "has no model.other"),
        ({}, with_nan, "contains a NaN"),
        ({}, not_low_rank, "publish merged weights"),
    ],
)
async def test_an_invalid_adapter_is_refused_before_an_engine_is_asked(
    written: Any, spoil: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    engine = AdapterEngine(root=write_checkpoint(tmp_path / "base"))
    write_adapter(tmp_path / "adapter", **written)
    spoil(tmp_path / "adapter")
    async with trainer_server(engine, weights_check="values") as policy:
        status, answer = await policy.update(str(tmp_path / "adapter"), version="v1", kind="adapter")
        assert (status, words in answer["detail"]) == (400, True), answer
        assert "/pause?mode=wait" not in engine.paths and (await policy.get("/weights"))[1]["version"] == "0"
        assert (await policy.update(write_adapter(tmp_path / "good"), version="v1", kind="adapter"))[0] == 200

"""Weights that are sent to GPUs: the order of the calls, and that no engine serves an incomplete version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rollyard.records.errors import RunError
from rollyard.responses_api_models.chat_engine import weight_update
from rollyard.training.transfer_publisher import TransferPublisher
from rollyard.training.weight_publisher import PolicyClient
from tests.support.transfer_engine import SENT, FakeGroup, FakeSender, TransferEngine
from tests.support.waiting import deadline_s, until
from tests.support.weight_engine import STARTED, TOKEN, TrainerClient, engine_url, trainer_server

UPDATE = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache", "/resume"]


@pytest.fixture(autouse=True)
def check_engines_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_update, "CHECK_INTERVAL_S", 0.02)


@asynccontextmanager
async def publishing(
    *engines: TransferEngine, timeout_s: float = 60.0
) -> AsyncIterator[tuple[TransferPublisher, FakeSender, TrainerClient]]:
    sender = FakeSender(engines[0].group, len(engines))
    async with trainer_server(*engines) as policy:
        client = PolicyClient(policy.transport, "http://policy:1", TOKEN)
        publisher = TransferPublisher(client, sender, timeout_s=timeout_s)
        yield publisher, sender, policy


def steps(engine: TransferEngine) -> list[str]:
    """The control calls that an engine received, without version names and queries."""
    ignored = ("/update_weight_version", "/get_world_size", "/server_info", "/v1/models", "/is_paused")
    return [name for path in engine.paths if (name := path.partition("?")[0]) not in ignored]


async def test_an_update_pauses_connects_sends_resets_the_cache_and_resumes() -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, sender, policy):
        await publisher.publish("step_000001")
        assert steps(engine) == ["/pause", "/init_weight_transfer_engine", *UPDATE]
        assert sender.calls == ["close", "init_info", "open", "update_info", "send"]
        assert (await policy.version(), engine.label) == ("step_000001", "step_000001")
        assert await policy.call_model() == (200, SENT)


async def test_later_updates_use_the_same_connection_and_announce_the_weights_in_the_order_of_the_transfer() -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, sender, _):
        for step in range(1, 4):
            await publisher.publish(f"step_{step:06d}")
        assert (sender.calls.count("open"), sender.calls.count("send")) == (1, 3)
        info = engine.infos[-1]
        announced = list(zip(info["names"], info["shapes"], strict=True))
        assert announced == sender.weights == engine.group.stream
        assert info["dtype_names"] == ["float32", "float32"]


async def test_the_workers_of_several_engines_get_different_ranks() -> None:
    engines = [TransferEngine(group := FakeGroup(), workers=2), *(TransferEngine(group, workers=n) for n in (4, 1))]
    async with publishing(*engines) as (publisher, sender, _):
        await publisher.publish("step_000001")
        assert (sorted(group.joined), sender.workers, group.received) == ([1, 3, 7], 7, 3)
        assert [engine.label for engine in engines] == ["step_000001"] * 3


@pytest.mark.parametrize("stage", ["init_info", "open", "update_info", "send"])
async def test_a_failure_of_the_trainer_s_side_is_repeated_with_a_new_connection(stage: str) -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, sender, policy):
        sender.fails_once.add(stage)
        # The engine's side of the same step, which NCCL would keep waiting.
        engine.fails_once |= {"open": {"/init_weight_transfer_engine"}, "send": {"/update_weights"}}.get(stage, set())
        await publisher.publish("step_000001")
        assert sender.calls.count("close") >= 2
        assert (await policy.version(), engine.paused) == ("step_000001", False)


async def test_after_a_transfer_that_never_succeeds_no_engine_with_incomplete_weights_answers() -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine, timeout_s=1.0) as (publisher, _, policy):
        engine.fails.add("/update_weights")
        with pytest.raises(RunError, match=r"step_000001 within 1 s"):
            await publisher.publish("step_000001")
        await until(lambda: not policy.server.trainer._gate.reasons)
        status, detail = await policy.call_model()
        assert (status, "restart" in detail) == (503, True)
        assert engine.weights is None and not engine.dead
        engine.restart()
        async with asyncio.timeout(deadline_s()):
            while (answer := await policy.call_model())[0] == 503:
                await asyncio.sleep(0.02)
        assert answer == (200, STARTED)


async def test_a_refusal_ends_the_training_before_the_weights_change() -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, sender, policy):
        engine.answers["/start_weight_update"] = (400, b'{"error": {"message": "weight_transfer_config is not set"}}')
        with pytest.raises(RunError, match=r"refuses .*step_000001: .*weight_transfer_config"):
            await publisher.publish("step_000001")
        await until(lambda: not engine.paused)
        assert ("send" in sender.calls, await policy.call_model()) == (False, (200, STARTED))


async def test_a_restarted_engine_is_connected_again_and_gets_the_version_under_a_new_name() -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, _, policy):
        await publisher.publish("step_000001")
        assert await publisher.repair() is None
        engine.restart()
        engine.group.opened.clear()
        await until(lambda: bool(policy.server.trainer.versions.difference([engine_url(0)])))
        assert (await policy.call_model())[0] == 503
        repaired = await publisher.repair()
        assert repaired is not None and repaired.version == "step_000001.1"
        assert await policy.call_model() == (200, SENT)
        assert await publisher.repair() is None


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/resume"])
async def test_weights_that_have_arrived_are_not_sent_again(path: str) -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, sender, policy):
        engine.fails_once.add(path)
        await publisher.publish("step_000001")
        assert (sender.calls.count("send"), engine.paused) == (1, False)
        assert await policy.call_model() == (200, SENT)


@pytest.mark.parametrize("problem", ["transfer", "prefix cache"])
async def test_a_transfer_that_does_not_end_stops_the_training_at_the_time_limit(problem: str) -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine, timeout_s=1.0) as (publisher, sender, _):
        if problem == "prefix cache":
            engine.answers["/reset_prefix_cache"] = (200, b'{"success": false}')
        else:
            sender.hangs_at = "update_info"
        with pytest.raises(RunError, match=problem):
            await publisher.publish("step_000001")


async def test_a_version_name_is_not_used_twice() -> None:
    engine = TransferEngine(FakeGroup())
    async with publishing(engine) as (publisher, _, _):
        await publisher.publish("step_000001")
        with pytest.raises(RunError, match="'step_000001' already"):
            await publisher.publish("step_000001")

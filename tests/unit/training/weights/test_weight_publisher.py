"""A version is saved, loaded by every engine, and published once, also if responses are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.services.http.transport import HttpResponse
from rollyard.training.weights.policy_client import PolicyClient
from rollyard.training.weights.version_folders import VersionFolders
from rollyard.training.weights.weight_publisher import WeightPublisher
from tests.support.weight_engine import TOKEN, TrainerClient, WeightEngine, trainer_server

Send = Callable[[], Awaitable[HttpResponse]]


class UnreliableTransport:
    """Passes requests on; `fault` may lose the response of an update, or the request."""

    def __init__(self, policy: TrainerClient, fault: Callable[[int, Send], Awaitable[HttpResponse]]) -> None:
        self.policy = policy
        self.fault = fault
        self.updates = 0

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        async def send() -> HttpResponse:
            return await self.policy.transport.send(method, url, body, headers, timeout_s)

        if not url.endswith("/weights/update"):
            return await send()
        self.updates += 1
        return await self.fault(self.updates, send)

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        return await self.policy.transport.stream(method, url, body, headers, timeout_s)

    async def close(self) -> None:
        pass


async def sound(number: int, send: Send) -> HttpResponse:
    return await send()


@asynccontextmanager
async def publisher(
    folder: Path,
    *engines: WeightEngine,
    fault: Callable[[int, Send], Awaitable[HttpResponse]] = sound,
    timeout_s: float = 60.0,
    token: str = TOKEN,
) -> AsyncIterator[tuple[WeightPublisher, TrainerClient, UnreliableTransport]]:
    async with trainer_server(*engines) as policy:
        transport = UnreliableTransport(policy, fault)
        client = PolicyClient(transport, "http://policy:1", token)
        yield WeightPublisher(client, VersionFolders(folder, keep=2), timeout_s=timeout_s), policy, transport


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_text("weights")


async def test_every_engine_loads_the_folder_of_the_version(tmp_path: Path) -> None:
    engines = WeightEngine(), WeightEngine()
    async with publisher(tmp_path, *engines) as (weights, policy, _):
        published = await weights.publish("step_000001", save)
        assert (published.version, published.folder) == ("step_000001", tmp_path / "step_000001")
        assert await policy.version() == "step_000001"
        assert [engine.weights for engine in engines] == [str(tmp_path / "step_000001")] * 2


async def test_old_versions_are_removed_after_the_engines_have_loaded_the_new_one(tmp_path: Path) -> None:
    async with publisher(tmp_path, WeightEngine()) as (weights, _, _):
        for step in range(1, 5):
            await weights.publish(f"step_{step:06d}", save)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000003", "step_000004"]


async def test_an_update_whose_response_was_lost_is_not_repeated(tmp_path: Path) -> None:
    async def lost(number: int, send: Send) -> HttpResponse:
        await send()
        raise Failure(FailureKind.CONNECTION_LOST, "the connection broke")

    async with publisher(tmp_path, WeightEngine(), fault=lost) as (weights, policy, transport):
        await weights.publish("step_000001", save)
        assert (await policy.version(), transport.updates) == ("step_000001", 1)


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.UPSTREAM_ERROR])
async def test_an_update_that_did_not_arrive_is_repeated(kind: FailureKind, tmp_path: Path) -> None:
    async def first_fails(number: int, send: Send) -> HttpResponse:
        if number == 1:
            raise Failure(kind, "the engine restarts")
        return await send()

    async with publisher(tmp_path, WeightEngine(), fault=first_fails) as (weights, policy, transport):
        await weights.publish("step_000001", save)
        assert (await policy.version(), transport.updates) == ("step_000001", 2)


async def test_an_update_that_never_succeeds_ends_at_the_timeout(tmp_path: Path) -> None:
    async def fails(number: int, send: Send) -> HttpResponse:
        raise Failure(FailureKind.UNREACHABLE, "no engine is up")

    async with publisher(tmp_path, WeightEngine(), fault=fails, timeout_s=1.0) as (weights, _, transport):
        with pytest.raises(RunError, match=r"step_000001 within 1 s: .*no engine"):
            await weights.publish("step_000001", save)
        assert transport.updates <= 3


async def test_refused_weights_end_the_training_at_once(tmp_path: Path) -> None:
    async with publisher(tmp_path, WeightEngine(), token="wrong") as (weights, _, transport):
        with pytest.raises(RunError, match=r"refuses .*step_000001"):
            await weights.publish("step_000001", save)
        assert transport.updates == 1

"""A version is saved, loaded by every engine, published once also if responses are lost, and compared."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.types import Json
from rollyard.training.train_config import WeightSettings
from rollyard.training.weight_publisher import (
    EngineLogProbs,
    Parity,
    ParityProbe,
    PolicyClient,
    ScoredSequence,
    VersionFolders,
    WeightPublisher,
    probe_sequences,
    resolved_method,
)
from tests.support.weight_engine import TOKEN, TrainerClient, WeightEngine, engine_url, log_prob, trainer_server

Fault = Callable[[int], Failure | None]


class FaultyClient(PolicyClient):
    """`fault` makes the update with a number fail before it is sent; `is_lost`: its response is lost."""

    def __init__(self, policy: TrainerClient, token: str, fault: Fault, is_lost: bool) -> None:
        super().__init__(policy.transport, "http://policy:1", token)
        self._fault, self._is_lost = fault, is_lost
        self.updates = 0

    async def update(self, *arguments: Any) -> Json:
        self.updates += 1
        if failure := self._fault(self.updates):
            raise failure
        found = await super().update(*arguments)
        if self._is_lost:
            raise Failure(FailureKind.CONNECTION_LOST, "the connection broke")
        return found


@asynccontextmanager
async def publisher(
    folder: Path,
    *engines: WeightEngine,
    fault: Fault = lambda number: None,
    is_lost: bool = False,
    timeout_s: float = 60.0,
    token: str = TOKEN,
) -> AsyncIterator[tuple[WeightPublisher, TrainerClient, FaultyClient]]:
    async with trainer_server(*engines) as policy:
        client = FaultyClient(policy, token, fault, is_lost)
        yield WeightPublisher(client, VersionFolders(folder, keep=2), timeout_s=timeout_s), policy, client


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_text("weights")


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


async def test_every_engine_loads_the_folder_of_the_version_and_old_ones_are_removed(tmp_path: Path) -> None:
    engines = WeightEngine(), WeightEngine()
    async with publisher(tmp_path, *engines) as (weights, policy, _):
        for version in ("step_000001", "step_000002", "step_000003"):
            published = await weights.publish(version, save)
            assert published.version == await policy.version() == version
            assert [engine.weights for engine in engines] == [str(tmp_path / version)] * 2
    assert names(tmp_path) == ["step_000002", "step_000003"]


@pytest.mark.parametrize(
    "kind", [FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.UPSTREAM_ERROR, None]
)
async def test_an_update_that_did_not_arrive_is_repeated_but_not_one_whose_response_was_lost(
    kind: FailureKind | None, tmp_path: Path
) -> None:
    def first_fails(number: int) -> Failure | None:
        return Failure(kind, "the engine restarts") if kind and number == 1 else None

    async with publisher(tmp_path, WeightEngine(), fault=first_fails, is_lost=kind is None) as (
        weights,
        policy,
        client,
    ):
        await weights.publish("step_000001", save)
        assert (await policy.version(), client.updates) == ("step_000001", 2 if kind else 1)


async def test_an_update_that_never_succeeds_ends_at_the_timeout(tmp_path: Path) -> None:
    def fails(number: int) -> Failure:
        return Failure(FailureKind.UNREACHABLE, "no engine is up")

    async with publisher(tmp_path, WeightEngine(), fault=fails, timeout_s=1.0) as (weights, _, client):
        with pytest.raises(RunError, match=r"step_000001 within 1 s: .*no engine"):
            await weights.publish("step_000001", save)
        assert client.updates <= 3


async def test_refused_weights_end_the_training_at_once(tmp_path: Path) -> None:
    async with publisher(tmp_path, WeightEngine(), token="wrong") as (weights, _, client):
        with pytest.raises(RunError, match=r"refuses .*step_000001"):
            await weights.publish("step_000001", save)
        assert client.updates == 1


def test_a_version_gets_its_name_when_it_is_complete_and_is_never_overwritten(tmp_path: Path) -> None:
    def watched(folder: Path) -> None:
        save(folder)
        assert not (tmp_path / "step_000001").exists()

    folders = VersionFolders(tmp_path, keep=2)
    assert folders.write("step_000001", watched) == tmp_path / "step_000001"
    with pytest.raises(RunError, match="step_000001 already"):
        folders.write("step_000001", lambda folder: (folder / "model.safetensors").touch())
    assert (tmp_path / "step_000001" / "model.safetensors").read_text() == "weights" and len(names(tmp_path)) == 1


def test_a_failed_save_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    folders = VersionFolders(tmp_path, keep=2)

    def full_disk(folder: Path) -> None:
        save(folder)
        raise OSError(28, os.strerror(28))

    with pytest.raises(RunError, match=rf"step_000001: {os.strerror(28)}"):
        folders.write("step_000001", full_disk)
    assert names(tmp_path) == []
    folders.write("step_000001", save)


def test_the_newest_versions_and_those_in_use_are_kept_and_nothing_half_written(tmp_path: Path) -> None:
    folders = VersionFolders(tmp_path, keep=2)
    for step in range(1, 6):
        os.utime(folders.write(f"step_{step:06d}", save), (step, step))
    (tmp_path / ".step_000006.partial").mkdir()
    folders.prune({tmp_path / "step_000001"})
    assert names(tmp_path) == ["step_000001", "step_000004", "step_000005"]


GPUS: dict[str, Any] = {"trainer_has_gpu": True, "engines_on_cpu": False, "has_adapters": False}


def test_auto_is_nccl_between_gpus() -> None:
    assert resolved_method(WeightSettings(), **GPUS) == "nccl"


@pytest.mark.parametrize(
    "obstacle", [{"trainer_has_gpu": False}, {"engines_on_cpu": True}, {"has_adapters": True}, {"processes": 2}]
)
def test_where_a_transfer_is_impossible_auto_is_files_and_others_are_refused(obstacle: dict[str, Any]) -> None:
    assert resolved_method(WeightSettings(), **{**GPUS, **obstacle}) == "files"
    for method in ("nccl", "ipc"):
        with pytest.raises(RunError, match=f"weights.method is {method}, .*weights.method: files"):
            resolved_method(WeightSettings(method=method), **{**GPUS, **obstacle})


NEW = "/weights/new"
SEQUENCES = [[1, 2, 3, 4], [5, 6, 7]]


def trainer(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """The trainer's log-probabilities with the weights NEW."""
    return [[log_prob(NEW, token) for token in ids[1:]] for ids in sequences]


@asynccontextmanager
async def probed(*engines: WeightEngine, **settings: Any) -> AsyncIterator[tuple[ParityProbe, TrainerClient]]:
    async with trainer_server(*engines) as policy:
        await policy.update(NEW, version="v1")
        client = PolicyClient(policy.transport, "http://policy:1", TOKEN)
        yield ParityProbe(client, trainer, WeightSettings(**settings)), policy


@pytest.mark.parametrize("offset", [0.0, 5e-4])
async def test_small_differences_pass_and_the_figures_are_those_of_the_worst_engine(offset: float) -> None:
    engines = WeightEngine(), WeightEngine()
    engines[1].offset = offset
    async with probed(*engines) as (probe, _):
        parity = await probe.measure("v1", SEQUENCES)
        assert (parity.mean, parity.max, parity.tokens) == pytest.approx((offset, offset, 5))


async def test_one_wrong_engine_of_two_stops_the_training_by_name() -> None:
    engines = WeightEngine(), WeightEngine()
    engines[1].offset = -1.5
    async with probed(*engines) as (probe, _):
        with pytest.raises(RunError) as raised:
            await probe.measure("v1", SEQUENCES)
    assert all(
        part in str(raised.value) for part in ("version v1", engine_url(1), "is 1.5 nats", "tie_word_embeddings")
    )


@pytest.mark.parametrize(
    ("dtype", "tolerance", "passes"), [("float32", None, False), ("float32", 0.05, True), ("bfloat16", None, True)]
)
async def test_a_given_tolerance_and_that_of_bfloat16_are_larger(
    dtype: str, tolerance: float | None, passes: bool
) -> None:
    engine = WeightEngine()
    engine.offset = 0.04
    async with probed(engine) as (_, policy):
        client = PolicyClient(policy.transport, "http://policy:1", TOKEN)
        probe = ParityProbe(client, trainer, WeightSettings(parity_tolerance=tolerance), dtype=dtype)
        with nullcontext() if passes else pytest.raises(RunError, match=r"at most 0\.001"):
            await probe.measure("v1", SEQUENCES)


async def test_another_version_on_the_engines_is_not_compared() -> None:
    async with probed(WeightEngine()) as (probe, _):
        with pytest.raises(RunError, match=r"\bv1\b.*\bv2\b"):
            await probe.measure("v2", SEQUENCES)


class Restarting:
    def __init__(self, failures: int, kind: FailureKind) -> None:
        self.left = failures
        self.kind = kind
        self.requests = 0

    async def log_probs(self, sequences: Sequence[Sequence[int]], timeout_s: float) -> EngineLogProbs:
        self.requests += 1
        if self.left:
            self.left -= 1
            raise Failure(self.kind, "the engine restarts")
        rows = zip(sequences, trainer(sequences), strict=True)
        return EngineLogProbs("v1", {"http://engine": [ScoredSequence(ids, row) for ids, row in rows]})


@pytest.mark.parametrize("kind", [FailureKind.UNREACHABLE, FailureKind.UPSTREAM_ERROR, FailureKind.MALFORMED_ANSWER])
async def test_a_restarting_engine_is_asked_again(kind: FailureKind) -> None:
    policy: Any = Restarting(1, kind)
    assert await ParityProbe(policy, trainer, WeightSettings()).measure("v1", SEQUENCES) == Parity(0.0, 0.0, 5)
    assert policy.requests == 2


@pytest.mark.parametrize(("kind", "most"), [(FailureKind.UNREACHABLE, 9), (FailureKind.BAD_REQUEST, 1)])
async def test_engines_that_never_answer_stop_the_training_and_a_refusal_at_once(kind: FailureKind, most: int) -> None:
    policy: Any = Restarting(10**6, kind)
    with pytest.raises(RunError, match=r"version v1 .*the engine restarts"):
        await ParityProbe(policy, trainer, WeightSettings(timeout_s=1.0)).measure("v1", SEQUENCES)
    assert policy.requests <= most


async def test_nan_is_the_largest_difference() -> None:
    def broken(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[float("nan")] * len(row) for row in trainer(sequences)]

    policy: Any = Restarting(0, FailureKind.UNREACHABLE)
    with pytest.raises(RunError, match="is inf nats"):
        await ParityProbe(policy, broken, WeightSettings()).measure("v1", SEQUENCES)


@pytest.mark.parametrize(
    ("device", "settings", "due"),
    [("cpu", {}, [1, 2, 3]), ("cuda", {}, [1, 10, 20]), ("cuda", {"parity_interval": 7}, [1, 7, 14, 21]),
     ("cpu", {"parity_interval": 0}, [])],
)  # fmt: skip
async def test_every_update_is_measured_on_a_cpu_and_every_tenth_on_gpus(
    device: str, settings: dict[str, int], due: list[int]
) -> None:
    async with probed(WeightEngine(device=device), **settings) as (probe, _):
        found = [step for step in range(1, 24) if await probe.is_due(step)]
        assert found[: len(due)] == due and bool(found) == bool(due)


def test_the_sequences_to_compare_are_spread_over_the_rollouts_and_cut() -> None:
    rollouts = [[number] * (number + 1) for number in range(20)]
    chosen = probe_sequences(rollouts, count=4, length=8)
    assert [ids[0] for ids in chosen] == [1, 5, 9, 13] and max(map(len, chosen)) == 8
    assert probe_sequences([[1], []]) == []

"""Engines whose log-probabilities differ from the trainer's stop the training; restarts do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.training.train_config import WeightSettings
from rollyard.training.weight_publisher import (
    EngineLogProbs,
    Parity,
    ParityProbe,
    PolicyClient,
    ScoredSequence,
    probe_sequences,
)
from tests.support.weight_engine import TOKEN, TrainerClient, WeightEngine, engine_url, log_prob, trainer_server

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


async def test_equal_log_probabilities_pass_on_every_engine() -> None:
    async with probed(WeightEngine(), WeightEngine()) as (probe, _):
        parity = await probe.measure("v1", SEQUENCES)
        assert (parity.mean, parity.max, parity.tokens, parity.engines) == pytest.approx((0, 0, 5, 2))


async def test_the_figures_are_those_of_the_worst_engine() -> None:
    engines = WeightEngine(), WeightEngine()
    engines[1].offset = 5e-4
    async with probed(*engines) as (probe, _):
        parity = await probe.measure("v1", SEQUENCES)
        assert (parity.mean, parity.max) == pytest.approx((5e-4, 5e-4))


async def test_one_wrong_engine_of_two_stops_the_training_by_name() -> None:
    engines = WeightEngine(), WeightEngine()
    engines[1].offset = -1.5
    async with probed(*engines) as (probe, _):
        with pytest.raises(RunError) as raised:
            await probe.measure("v1", SEQUENCES)
    message = str(raised.value)
    for part in ("version v1", engine_url(1), "is 1.5 nats", "at most 0.001", "tie_word_embeddings", "5 tokens"):
        assert part in message
    assert f"other engines: {engine_url(0)}: " in message


async def test_a_given_tolerance_and_that_of_bfloat16_are_larger() -> None:
    engine = WeightEngine()
    engine.offset = 0.04
    async with probed(engine) as (probe, policy):
        with pytest.raises(RunError, match=r"at most 0\.001"):
            await probe.measure("v1", SEQUENCES)
        client = PolicyClient(policy.transport, "http://policy:1", TOKEN)
        await ParityProbe(client, trainer, WeightSettings(parity_tolerance=0.05)).measure("v1", SEQUENCES)
        await ParityProbe(client, trainer, WeightSettings(), dtype="bfloat16").measure("v1", SEQUENCES)


async def test_another_version_on_the_engines_is_not_compared() -> None:
    async with probed(WeightEngine()) as (probe, _):
        with pytest.raises(RunError, match=r"\bv1\b.*\bv2\b"):
            await probe.measure("v2", SEQUENCES)


class Restarting:
    """A policy whose engine is down for some requests."""

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
    assert await ParityProbe(policy, trainer, WeightSettings()).measure("v1", SEQUENCES) == Parity(0.0, 0.0, 5, 1)
    assert policy.requests == 2


async def test_engines_that_never_answer_stop_the_training_at_the_timeout() -> None:
    policy: Any = Restarting(10**6, FailureKind.UNREACHABLE)
    with pytest.raises(RunError, match=r"version v1 .*the engine restarts"):
        await ParityProbe(policy, trainer, WeightSettings(timeout_s=1.0)).measure("v1", SEQUENCES)


async def test_a_refused_request_is_not_repeated() -> None:
    policy: Any = Restarting(10**6, FailureKind.BAD_REQUEST)
    with pytest.raises(RunError, match="cannot compare"):
        await ParityProbe(policy, trainer, WeightSettings()).measure("v1", SEQUENCES)
    assert policy.requests == 1


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

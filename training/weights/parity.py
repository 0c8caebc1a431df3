"""ParityProbe: compares what the engines compute with what the trainer computes, for the same tokens and weights."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.services.backoff import Restarts
from rollyard.training.train_config import WeightSettings
from rollyard.training.weights.policy_client import EngineLogProbs, PolicyClient, ScoredSequence

LogProbs = Callable[[Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Returns, for each sequence of ids, the trainer's log-probability of every token but the first, at temperature 1."""

INTERVALS = {True: 1, False: 10}
"""Default interval in updates, by whether the engines run on a CPU."""
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}
"""Default tolerance in nats, by the type of the trainer's weights."""
_STATUS_S = 10.0
_PAUSES = Restarts(first_pause_s=0.5, longest_pause_s=10.0)
_REFUSALS = (FailureKind.BAD_REQUEST, FailureKind.UNAUTHORIZED, FailureKind.FORBIDDEN, FailureKind.UNKNOWN_SERVER)


@dataclass(frozen=True, slots=True)
class Parity:
    """Absolute differences of log-probabilities, in nats: those of the engine with the largest mean."""

    mean: float
    max: float
    tokens: int
    """Number of tokens that were compared on each engine."""
    engines: int = 1


def probe_sequences(sequences: Sequence[Sequence[int]], *, count: int = 4, length: int = 512) -> list[list[int]]:
    """Choose the sequences to compare, such as those of the latest rollouts: spread over all, and cut to `length`."""
    usable = [sequence for sequence in sequences if len(sequence) > 1]
    step = max(1, len(usable) // count)
    return [list(sequence[:length]) for sequence in usable[::step][:count]]


class ParityProbe:
    """Asks every engine of the policy. A version that an engine has loaded incorrectly stops the training."""

    def __init__(
        self, client: PolicyClient, log_probs: LogProbs, settings: WeightSettings, *, dtype: str = "float32"
    ) -> None:
        """`dtype`: type of the trainer's weights, for the default tolerance."""
        self._client = client
        self._log_probs = log_probs
        self._settings = settings
        self._tolerance = settings.parity_tolerance or TOLERANCES.get(dtype, TOLERANCES["bfloat16"])
        self._interval = settings.parity_interval
        self._latest: tuple[object, Sequence[Sequence[float]]] | None = None

    async def is_due(self, updates: int) -> bool:
        """Return whether to measure after this number of updates. Always after the first.

        Raises RunError if the model server does not say whether its engines run on a CPU.
        """
        if self._interval is None:
            try:
                status = await self._client.status(_STATUS_S)
            except Failure as failure:
                raise RunError(f"the policy's model server does not describe its engines: {failure}") from failure
            self._interval = INTERVALS[bool(status.get("on_cpu"))]
        return self._interval > 0 and (updates <= 1 or updates % self._interval == 0)

    async def measure(self, version: str, sequences: Sequence[Sequence[int]]) -> Parity:
        """Compare the engines with the trainer, whose weights are those of `version`.

        The engines are asked again while one of them restarts, up to `timeout_s` seconds in total. Raises RunError if
        the mean difference exceeds the tolerance on any engine, if the engines have another version, or if they do not
        answer in time.
        """
        if not sequences:
            raise RunError("no token sequences to compare: give the ids of at least one rollout")
        found = await self._ask(version, sequences)
        self._latest = None
        parities = {url: _difference(await self._own(scored), scored) for url, scored in found.engines.items()}
        url, worst = max(parities.items(), key=lambda one: one[1].mean)
        if worst.mean > self._tolerance:
            raise RunError(self._problem(version, url, worst, parities))
        return Parity(worst.mean, max(one.max for one in parities.values()), worst.tokens, len(parities))

    async def _own(self, scored: Sequence[ScoredSequence]) -> Sequence[Sequence[float]]:
        """Return the trainer's log-probabilities. Engines that were asked for the same tokens share them."""
        key = tuple(tuple(one.ids) for one in scored)
        if self._latest is None or self._latest[0] != key:
            self._latest = key, await asyncio.to_thread(self._log_probs, [list(ids) for ids in key])
        return self._latest[1]

    async def _ask(self, version: str, sequences: Sequence[Sequence[int]]) -> EngineLogProbs:
        until, pause = time.monotonic() + self._settings.timeout_s, 0.0
        while True:
            try:
                found = await self._client.log_probs(sequences, max(0.1, until - time.monotonic()))
                if not found.engines:
                    raise Failure(FailureKind.UNREACHABLE, "no engine is up")
            except Failure as failure:
                pause = _PAUSES.next_pause_s(pause)
                if failure.kind in _REFUSALS or time.monotonic() + pause >= until:
                    raise RunError(f"cannot compare version {version} with the trainer: {failure}") from failure
                await asyncio.sleep(pause)
                continue
            if found.version != version:
                raise RunError(
                    f"the engines have version {found.version}, but the trainer published {version}: another trainer "
                    "updates the same policy"
                )
            return found

    def _problem(self, version: str, url: str, worst: Parity, parities: Mapping[str, Parity]) -> str:
        others = ", ".join(f"{other}: {parity.mean:.3g}" for other, parity in parities.items() if other != url)
        return (
            f"the weights of version {version} differ between the trainer and the engine {url}: the mean difference of "
            f"the log-probabilities of {worst.tokens} tokens is {worst.mean:.3g} nats (largest: {worst.max:.3g}), "
            f"expected at most {self._tolerance:g}{f' (other engines: {others})' if others else ''}. Either the engine "
            "did not load the weights correctly, such as those of a model with tie_word_embeddings on a CPU, or it "
            "computes with less precision: compare its --dtype and --quantization with optimizer.dtype, or set "
            "weights.parity_tolerance"
        )


def _difference(own: Sequence[Sequence[float]], scored: Sequence[ScoredSequence]) -> Parity:
    differences = [
        _absolute(one - other)
        for row, sequence in zip(own, scored, strict=True)
        for one, other in zip(row[len(row) - len(sequence.log_probs) :], sequence.log_probs, strict=True)
    ]
    return Parity(sum(differences) / len(differences), max(differences), len(differences))


def _absolute(difference: float) -> float:
    """Return the absolute value; infinity for NaN, so that it is the largest."""
    return math.inf if math.isnan(difference) else abs(difference)

"""Brings new weights to the engines of the policy.

WeightPublisher saves a version into a folder of its own and has every engine load it, through PolicyClient, the weight
endpoints of the model server. transfer_publisher.py sends versions between GPUs instead. ParityProbe compares the
engines' log-probabilities with the trainer's, so that weights that were loaded wrongly stop the training.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.locked_files import sync_folder, sync_tree
from rollyard.records.types import Json
from rollyard.services.backoff import Backoff
from rollyard.services.http.request import raise_for_status
from rollyard.services.http.transport import Transport
from rollyard.training.train_config import WeightSettings

WeightKind = Literal["weights", "adapter"]
STATUS_S = 10.0
PAUSES = Backoff(first_pause_s=0.5, longest_pause_s=10.0)
REFUSALS = (FailureKind.BAD_REQUEST, FailureKind.UNAUTHORIZED, FailureKind.FORBIDDEN, FailureKind.UNKNOWN_SERVER)
"""Failures of a call that would fail again."""


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    version: str
    seconds: float
    """Duration of saving and loading."""
    warnings: tuple[str, ...] = ()
    """What the model server could not check."""


class Publisher(Protocol):
    """Brings versions of the weights to the engines, one at a time: WeightPublisher or TransferPublisher."""

    async def publish(self, version: str, save: Callable[[Path], None]) -> PublishedWeights:
        """Have every engine use the trainer's current weights as this version. Raises RunError."""

    async def repair(self) -> PublishedWeights | None:
        """Publish the latest version again if an engine has lost it; None if all have it. Raises RunError."""


@dataclass(frozen=True)
class WeightPublisher:
    """The trainer waits meanwhile, and so do the policy's model calls."""

    client: PolicyClient
    folders: VersionFolders
    timeout_s: float
    kind: WeightKind = "weights"
    """`adapter` if the folders contain LoRA adapters, which the engines add to the weights that they started with."""

    async def publish(self, version: str, save: Callable[[Path], None]) -> PublishedWeights:
        """Save a version with `save`, which writes a folder of weights, and load it into the engines.

        While an engine or the model server restarts, the update is repeated, up to `timeout_s` seconds in total. Raises
        RunError if the weights are refused or not loaded in time; the engines then have one version in common, the old
        or the new one, or refuse model calls.
        """
        started = time.monotonic()
        folder = await asyncio.to_thread(self.folders.write, version, save)
        answer = await self._load(folder, version, time.monotonic() + self.timeout_s)
        await asyncio.to_thread(self.folders.prune, {folder})
        warnings = tuple(map(str, answer.get("warnings") or ()))
        return PublishedWeights(version, time.monotonic() - started, warnings)

    async def repair(self) -> PublishedWeights | None:
        return None  # an engine that restarts loads the files again by itself

    async def _load(self, folder: Path, version: str, until: float) -> Json:
        failures = 0
        while True:
            try:
                return await self.client.update(folder, version, max(0.1, until - time.monotonic()), self.kind)
            except Failure as failure:
                if failure.kind in REFUSALS:
                    raise RunError(f"the policy refuses the weights of {version}: {failure}") from failure
                # The response may have been lost, but not the update.
                if await self._has(version, folder):
                    return {}
                failures += 1
                pause = PAUSES.pause_s(failures)
                if time.monotonic() + pause >= until:
                    raise RunError(
                        f"the engines did not load version {version} within {self.timeout_s:g} s: {failure}"
                    ) from failure
            await asyncio.sleep(pause)

    async def _has(self, version: str, folder: Path) -> bool:
        try:
            status = await self.client.status(STATUS_S)
        except Failure:
            return False
        # An engine may know the folder by another path, if `folder` contains a link.
        same = status.get("version") == version and Path(str(status.get("path"))).name == folder.name
        return same and not status.get("difference") and not status.get("waits_for")


_PARTIAL = ".partial"


class VersionFolders:
    """Folders in `root`, named after their versions. A folder never changes once it has its name, because engines that
    restart read it again.
    """

    def __init__(self, root: Path, *, keep: int) -> None:
        self._root = root.absolute()  # engines may have another working directory
        self._keep = keep

    def write(self, version: str, save: Callable[[Path], None]) -> Path:
        """Have `save` write the files of a version into an empty folder, and return that folder under its final name.

        Raises RunError if the version exists or the files cannot be written.
        """
        folder, partial = self._root / version, self._root / f".{version}{_PARTIAL}"
        if folder.exists():
            raise RunError(
                f"{folder} already exists: each version needs its own name, because engines may be reading it"
            )
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            save(partial)
            sync_tree(partial)
            partial.rename(folder)
            sync_folder(self._root)
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def prune(self, in_use: Collection[Path]) -> None:
        """Remove all versions except the newest `keep` and those in use, and what a killed trainer left behind."""
        if not self._root.is_dir():
            return
        found = [entry for entry in self._root.iterdir() if entry.is_dir() and not entry.is_symlink()]
        partial = [entry for entry in found if entry.name.endswith(_PARTIAL)]
        versions = sorted(set(found) - set(partial), key=lambda entry: (entry.stat().st_mtime_ns, entry.name))
        for folder in [*partial, *versions[: -self._keep]]:
            if folder not in in_use:
                shutil.rmtree(folder, ignore_errors=True)


Method = Literal["files", "nccl", "ipc"]


def resolved_method(
    settings: WeightSettings, *, trainer_has_gpu: bool, engines_on_cpu: bool, has_adapters: bool, processes: int = 1
) -> Method:
    """Return the method for `auto`: nccl between GPUs if one trainer process has all the weights, otherwise files.

    Raises RunError if the chosen method is impossible.
    """
    obstacle = (
        "adapters are published as files" if has_adapters
        else "the weights are divided among several processes" if processes > 1
        else "the trainer has no GPU" if not trainer_has_gpu
        else "the engines run on a CPU" if engines_on_cpu
        else ""
    )  # fmt: skip
    if settings.method == "auto":
        return "files" if obstacle else "nccl"
    if settings.method != "files" and obstacle:
        raise RunError(f"weights.method is {settings.method}, but {obstacle}: set weights.method: files")
    return settings.method


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """Token ids, and the log-probabilities of the last of them at temperature 1."""

    ids: Sequence[int]
    log_probs: Sequence[float]


@dataclass(frozen=True, slots=True)
class EngineLogProbs:
    """What the engines compute with one version of the weights."""

    version: str
    engines: Mapping[str, Sequence[ScoredSequence]]
    """URL of an engine -> sequences: those that were sent, or continuations of them that the engine has sampled."""


class PolicyClient:
    """Calls a model server whose `trainer_endpoints` are enabled."""

    def __init__(self, transport: Transport, url: str, token: str | None, name: str = "policy_model") -> None:
        self._transport = transport
        self._url = url.rstrip("/")
        self._name = name
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    async def update(self, folder: Path, version: str, timeout_s: float, kind: WeightKind = "weights") -> Json:
        """Have all engines load the weights, or the LoRA adapter, in `folder`.

        Raises Failure: bad_request if the model server refuses the weights, other kinds if they were not loaded or the
        outcome is unknown.
        """
        body = orjson.dumps({"path": str(folder), "version": version, "kind": kind})
        return await self._call("POST", "/weights/update", body, timeout_s)

    async def status(self, timeout_s: float) -> Json:
        """Return the version, its folder and the engines. Raises Failure."""
        return await self._call("GET", "/weights", b"", timeout_s)

    async def control(self, path: str, body: Json | None, timeout_s: float, *, method: str = "POST") -> Json:
        """Send one of vLLM's control calls to every engine. Raises Failure if one of them fails."""
        return await self._call(method, path, b"" if body is None else orjson.dumps(body), timeout_s)

    async def log_probs(self, sequences: Sequence[Sequence[int]], timeout_s: float) -> EngineLogProbs:
        """Return the log-probabilities that every engine computes for these token ids, or for continuations of them.

        Raises Failure if an engine does not respond, or if the weights changed in the meantime.
        """
        answer = await self._call("POST", "/weights/log_probs", orjson.dumps({"sequences": sequences}), timeout_s)
        try:
            engines = {
                str(one["url"]): [ScoredSequence(row["ids"], row["log_probs"]) for row in one["sequences"]]
                for one in answer["engines"]
            }
            return EngineLogProbs(str(answer["version"]), engines)
        except (KeyError, TypeError, ValueError) as error:
            raise Failure(FailureKind.MALFORMED_ANSWER, f"/weights/log_probs answered {str(answer)[:200]}") from error

    async def _call(self, method: str, path: str, body: bytes, timeout_s: float) -> Json:
        response = await self._transport.send(method, f"{self._url}{path}", body, self._headers, timeout_s)
        if 400 <= response.status < 500 and "problem" not in response.headers.get("content-type", ""):
            # Of a single engine, whose response the model server passes on unchanged.
            raise Failure(FailureKind.BAD_REQUEST, f"{path} answered {response.status}: {_excerpt(response.body)}")
        raise_for_status(response, self._name)
        try:
            answer = orjson.loads(response.body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            detail = f"{path} answered {_excerpt(response.body)!r}; expected a JSON object"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail)
        return answer


def _excerpt(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace")


LogProbs = Callable[[Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Returns, for each sequence of ids, the trainer's log-probability of every token but the first, at temperature 1."""

INTERVALS = {True: 1, False: 10}
"""Default interval in updates, by whether the engines run on a CPU."""
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}
"""Default tolerance in nats, by the type of the trainer's weights."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Absolute differences of log-probabilities, in nats: those of the engine with the largest mean."""

    mean: float
    max: float
    tokens: int
    """Number of tokens that were compared on each engine."""


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

    async def is_due(self, updates: int) -> bool:
        """Return whether to measure after this number of updates. Always after the first."""
        if self._interval is None:
            try:
                status = await self._client.status(STATUS_S)
            except Failure as failure:
                raise RunError(f"the policy's model server does not describe its engines: {failure}") from failure
            self._interval = INTERVALS[bool(status.get("on_cpu"))]
        return self._interval > 0 and (updates <= 1 or updates % self._interval == 0)

    async def measure_if_due(self, updates: int, version: str, sequences: Sequence[Sequence[int]]) -> dict[str, float]:
        """Return `mean` and `max` of `measure`; nothing if it is not due."""
        if not await self.is_due(updates):
            return {}
        found = await self.measure(version, sequences)
        return {"mean": found.mean, "max": found.max}

    async def measure(self, version: str, sequences: Sequence[Sequence[int]]) -> Parity:
        """Compare the engines with the trainer, whose weights are those of `version`.

        The engines are asked again while one of them restarts, up to `timeout_s` seconds in total. Raises RunError if
        the mean difference exceeds the tolerance on any engine, or if they have another version or do not answer.
        """
        if not sequences:
            raise RunError("no token sequences to compare: give the ids of at least one rollout")
        found = await self._ask(version, sequences)
        own: dict[Any, Sequence[Sequence[float]]] = {}  # engines that were asked for the same tokens share them
        parities = {}
        for url, scored in found.engines.items():
            key = tuple(tuple(one.ids) for one in scored)
            if key not in own:
                own[key] = await asyncio.to_thread(self._log_probs, [list(ids) for ids in key])
            parities[url] = _difference(own[key], scored)
        url, worst = max(parities.items(), key=lambda one: one[1].mean)
        if worst.mean > self._tolerance:
            raise RunError(self._problem(version, url, worst, parities))
        return Parity(worst.mean, max(one.max for one in parities.values()), worst.tokens)

    async def _ask(self, version: str, sequences: Sequence[Sequence[int]]) -> EngineLogProbs:
        until, failures = time.monotonic() + self._settings.timeout_s, 0
        while True:
            try:
                found = await self._client.log_probs(sequences, max(0.1, until - time.monotonic()))
                if not found.engines:
                    raise Failure(FailureKind.UNREACHABLE, "no engine is up")
            except Failure as failure:
                failures += 1
                pause = PAUSES.pause_s(failures)
                if failure.kind in REFUSALS or time.monotonic() + pause >= until:
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
        math.inf if math.isnan(gap := one - other) else abs(gap)  # so that NaN is the largest
        for row, sequence in zip(own, scored, strict=True)
        for one, other in zip(row[len(row) - len(sequence.log_probs) :], sequence.log_probs, strict=True)
    ]
    return Parity(sum(differences) / len(differences), max(differences), len(differences))

"""StepRunner: what the main process does between two updates; and all metrics of a step, by the names of metrics.jsonl.

docs/training.md defines the metrics.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from anyio.from_thread import BlockingPortal

from rollyard.records.errors import RollyardError, RunError
from rollyard.records.types import Json
from rollyard.training.groups import GroupMember, RolloutGroup, Treatment
from rollyard.training.metrics_log import MetricsLog
from rollyard.training.policy_trainer import Save
from rollyard.training.run_folder import TrainingPaths
from rollyard.training.step_files import sampled_updates
from rollyard.training.train_config import TrainConfig
from rollyard.training.update import Batch, BatchSource, TokenPairs, Update, update_of, write_pairs
from rollyard.training.weight_publisher import Publisher, probe_sequences


@dataclass(eq=False)
class StepRunner:
    """Plays, publishes, measures and evaluates, in the order that the trainer asks for. After an error or a request to
    stop, it does nothing more. The caller saves a checkpoint and raises `error`.
    """

    config: TrainConfig
    calls: StackCalls
    parts: StackParts
    metrics: MetricsLog
    traces: Traces
    schedule: Schedule
    position: Mapping[str, int]
    """Position in the data after the latest update."""
    version: Callable[[int], str]
    """Returns the name of the weights after so many updates."""
    print_line: Callable[[str], None]
    error: RollyardError | None = None
    """Why training cannot continue."""
    is_complete: bool = False
    """True once the last update is done and evaluated."""

    def __post_init__(self) -> None:
        self._batch: Batch | None = None
        self._update = Update((), (), ())
        self._began = self._updating = time.monotonic()
        self._warnings = set[str]()

    def started(self, step: int, save: Save) -> None:
        with self._guarded():
            self._publish(step, save)
            if self.schedule.evaluates(step):
                self._evaluate(step)

    def next_update(self, step: int) -> Update | None:
        """Play the episodes of a step; None if training ends."""
        self._began = time.monotonic()
        if self._is_ending:
            return None
        if self.schedule.is_last(step - 1):
            self.is_complete = True
            return None
        batch = None
        with self._guarded():
            with self.traces.span("rollouts", step):
                source, publisher = self.parts.source, self.parts.publisher
                batch = self.calls.call(play_step, source, publisher, step, self.print_line)
            if batch is None:
                self.print_line(f"the data is exhausted after {step - 1} updates")
                self._finish(step - 1)
                return None
            temperature = float(self.config.responses_create_params.get("temperature", 1.0))
            longest = self.config.optimizer.max_seq_len
            self._update = update_of(batch.groups, max_seq_len=longest, temperature=temperature)
            self._batch = batch
        self._updating = time.monotonic()
        return None if self._is_ending else self._update

    def updated(self, step: int, trainer: Mapping[str, float], save: Save, pairs: TokenPairs | None = None) -> None:
        """Publish the new weights, and report the step."""
        batch = self._batch
        assert batch is not None, "an update has a batch"
        trained = time.monotonic()
        self.traces.record("update", step, self._updating)
        self.position = dict(batch.position)
        parity: Mapping[str, float] = {}
        seconds = 0.0
        with self._guarded():
            seconds = self._publish(step, save)
            parity = self._measure_parity(step)
        times = StepTimes(
            rollout_wait_s=self._updating - self._began,
            update_s=trained - self._updating,
            publish_s=seconds,
            step_s=time.monotonic() - self._began,
        )
        # Even if publishing failed: the update is part of the next checkpoint, so it must be part of the curve.
        with self._guarded():
            self.traces.trained(batch, self._update)
            if pairs is not None:
                write_pairs(TrainingPaths(self.config.output_dir).token_pairs(step), pairs, batch, self._update)
            self.metrics.write(step, step_metrics(batch, trainer, times, parity=parity, update=self._update))
        if self.schedule.is_last(step):
            self._finish(step)
        elif self.schedule.evaluates(step) and not self._is_ending:
            with self._guarded():
                self._evaluate(step)

    def close(self) -> None:
        if self.parts.close is not None:
            self.calls.clean_up(self.parts.close)

    @property
    def _is_ending(self) -> bool:
        return self.error is not None or self.calls.stopped

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Interrupted:
            pass
        except RollyardError as error:
            self.error = self.error or error

    def _publish(self, step: int, save: Save) -> float:
        with self.traces.span("publish", step):
            published = self.calls.call(self.parts.publisher.publish, self.version(step), save)
        # Every version of a model has the same ones, such as that engines convert its tensors.
        for warning in dict.fromkeys(published.warnings):
            if warning not in self._warnings:
                self._warnings.add(warning)
                self.print_line(f"weights {published.version}: {warning}")
        return published.seconds

    def _measure_parity(self, step: int) -> Mapping[str, float]:
        ids = [sequence.prompt_ids + sequence.completion_ids for sequence in self._update.sequences]
        sequences = probe_sequences(ids)
        if self.parts.measure_parity is None or not sequences:
            return {}
        with self.traces.span("parity", step):
            return self.calls.call(self.parts.measure_parity, step, self.version(step), sequences)

    def _evaluate(self, step: int) -> None:
        if self.parts.evaluate is None:
            return
        with self.traces.span("evaluation", step):
            found = self.calls.call(self.parts.evaluate, step)
        self.metrics.write(step, {f"eval/{name}": value for name, value in found.items()})
        self.schedule.evaluated.add(step)

    def _finish(self, step: int) -> None:
        if step not in self.schedule.evaluated and not self._is_ending:
            with self._guarded():
                self._evaluate(step)
        self.is_complete = not self._is_ending


REPAIR_S = 5.0
"""How often the publisher is asked whether an engine has lost the weights."""


async def play_step(
    source: BatchSource, publisher: Publisher, step: int, print_line: Callable[[str], None]
) -> Batch | None:
    """Return the batch of a step; None if the data is exhausted.

    An engine that restarts meanwhile gets no model calls until it has the weights again: it loads their files by
    itself, and weights that were transferred without files are sent again here. Its episodes fail until then and are
    retried.
    """
    playing = asyncio.ensure_future(source.next_batch(step))
    try:
        while True:
            # Repairs and the batch end in turn, so that no transfer is interrupted.
            done, _ = await asyncio.wait({playing}, timeout=REPAIR_S)
            if done:
                return playing.result()
            repaired = await publisher.repair()
            if repaired is not None:
                print_line(f"an engine lost the weights: they were sent again as {repaired.version}")
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class StackParts:
    source: BatchSource
    publisher: Publisher
    evaluate: Callable[[int], Awaitable[Mapping[str, float]]] | None = None
    """Evaluates the published weights, those after this number of updates, and returns metrics without a prefix."""
    measure_parity: Callable[[int, str, Sequence[Sequence[int]]], Awaitable[Mapping[str, float]]] | None = None
    """Compares engines and trainer on token sequences, after this number of updates and with this version. Returns
    `mean` and `max` in nats, or nothing if it is not due."""
    close: Callable[[], Awaitable[None]] | None = None
    """Stops what still plays, at the end of training."""


class Schedule:
    """`evaluated_steps`: the steps whose evaluations are in metrics.jsonl already."""

    def __init__(self, config: TrainConfig, evaluated_steps: Collection[int] = ()) -> None:
        self._config = config
        self.evaluated = set(evaluated_steps)

    def is_last(self, step: int) -> bool:
        """Return whether no update follows this one. False with max_steps 0, where the end of the data decides."""
        return bool(self._config.max_steps) and step >= self._config.max_steps

    def saves(self, step: int) -> bool:
        """Return whether there is a checkpoint after this update."""
        return self.is_last(step) or _is_due(step, self._config.checkpoint_interval)

    def evaluates(self, step: int) -> bool:
        """Return whether the weights after this update have to be evaluated, and have not been yet. A resumed training
        asks again about those with which it starts.
        """
        settings = self._config.evaluation
        due = settings.before_start if step == 0 else self.is_last(step) or _is_due(step, settings.interval)
        return due and step not in self.evaluated


def _is_due(step: int, interval: int) -> bool:
    return bool(interval) and step % interval == 0


T = TypeVar("T")

_UNWIND_S = 30.0
"""How long a cancelled call may take to close its files and connections."""


class Interrupted(Exception):
    """The call was cancelled, because the user wants training to end."""


class StackCalls:
    """Calls one coroutine at a time. `stop` cancels the current call and all later ones."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._current: concurrent.futures.Future[Any] | None = None
        self.stopped = False
        """True once `stop` was called."""

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Return the coroutine's result. Raises Interrupted, after it has ended, if `stop` is or was called."""
        if self.stopped:
            raise Interrupted
        ended = threading.Event()

        async def run() -> T:
            try:
                return await function(*arguments)
            finally:
                ended.set()

        self._current = future = self._portal.start_task_soon(run)
        try:
            if self.stopped:  # between the first check and the assignment
                future.cancel()
            return future.result()
        except concurrent.futures.CancelledError:
            ended.wait(_UNWIND_S)
            raise Interrupted from None
        finally:
            self._current = None

    def clean_up(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call a coroutine function even after `stop`."""
        self._portal.call(function)

    def stop(self) -> None:
        """Cancel the current call. May be called by a signal handler."""
        self.stopped = True
        if self._current is not None:
            self._current.cancel()


class Traces:
    """Appends to `trace.jsonl` and `samples.jsonl`. A killed run leaves the steps after its last checkpoint in them;
    `start` tells them from their repetition.
    """

    def __init__(self, folder: Path, start: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._trace = folder / "trace.jsonl"
        self._samples = folder / "samples.jsonl"
        self._start = start
        self._began = time.monotonic()
        self._append(self._trace, [{"type": "meta", "name": "start", "ts": 0.0, "time": time.time()}])

    @contextmanager
    def span(self, name: str, step: int) -> Iterator[None]:
        """Record the duration of the block in seconds, and whether it failed."""
        began = time.monotonic()
        failure = None
        try:
            yield
        except BaseException as error:
            failure = type(error).__name__
            raise
        finally:
            self.record(name, step, began, failure)

    def record(self, name: str, step: int, began: float, failure: str | None = None) -> None:
        """Record a stage that began at `began`, by the monotonic clock, and ends now."""
        entry: Json = {"type": "span", "name": name, "step": step, "ts": round(began - self._began, 6)}
        entry["dur"] = round(time.monotonic() - began, 6)
        self._append(self._trace, [entry | ({"failed": failure} if failure else {})])

    def trained(self, batch: Batch, update: Update) -> None:
        """Record what became of each group of a batch once the update is complete, and of each failed rollout."""
        used = {id(sequence) for sequence in update.sequences}
        entries = []
        for group in batch.groups:
            failed = {"event": "failed", "step": batch.step, "task_key": group.task_key}
            entries.append(_entry_of_group(group, used, batch.step))
            entries += [
                {**failed, "repeat": one.repeat, "reason": one.ending, "treatment": str(one.treatment)}
                for one in group.members
                if not one.sequences
            ]
        self._append(self._samples, entries)

    def _append(self, path: Path, entries: list[Json]) -> None:
        lines = [orjson.dumps({"start": self._start, **entry}) + b"\n" for entry in entries]
        try:
            with path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error


def _entry_of_group(group: RolloutGroup, used: set[int], step: int) -> Json:
    chosen = [sequence for member in group.members for sequence in member.sequences if id(sequence) in used]
    return {
        "event": "skipped" if group.skipped else "used",
        "step": step,
        "task_key": group.task_key,
        **({"reason": group.skipped} if group.skipped else {}),
        "members": len(group.members),
        "rewards": [member.reward for member in group.members if member.counts],
        "sequences": len(chosen),
        "loss_tokens": sum(sequence.loss_tokens for sequence in chosen),
        "versions": sorted({version for sequence in chosen for version in sequence.versions if version is not None}),
    }


_MEASURED = (Treatment.PLAYED, Treatment.MASKED)


NO_UPDATE = Update((), (), ())


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of the parts of a step, in seconds."""

    rollout_wait_s: float
    """Waiting for the rollouts."""
    update_s: float
    """Forward and backward passes, and the optimizer."""
    publish_s: float
    """Until all engines had the new weights."""
    step_s: float
    """The whole step. Evaluations and checkpoints are not part of it."""


def step_metrics(
    batch: Batch,
    trainer: Mapping[str, float],
    times: StepTimes,
    *,
    parity: Mapping[str, float] | None = None,
    update: Update = NO_UPDATE,
) -> dict[str, float]:
    """Return the metrics of a step by their complete names, such as `train/reward`. One that is undefined is absent.

    `trainer`: figures of the update, as in RolloutTrainer.update_metrics. `parity`: `mean` and `max` of a ParityProbe;
    they replace those of the update, whose rollouts may be older than the weights. `update`: what was trained on.

    Raises RunError if the version of the weights behind a token is unknown.
    """
    measured = [member for group in batch.groups for member in group.members if member.treatment in _MEASURED]
    count = len(update.sequences) + update.too_long
    train = {
        **_rewards(measured),
        **_completions(measured),
        **_groups(batch),
        **({"seq_too_long_rate": update.too_long / count} if count else {}),
        **_staleness(measured, batch.step),
        **trainer,
        **{f"parity_{name}": value for name, value in (parity or {}).items()},
    }
    perf = _perf(measured, times)
    return {f"train/{name}": value for name, value in train.items()} | {f"perf/{name}": perf[name] for name in perf}


def _rewards(measured: Sequence[GroupMember]) -> dict[str, float]:
    if not measured:
        return {}
    rewards = [member.reward for member in measured]
    # A part that a rollout lacks is 0, so that the parts add up to the reward.
    parts = dict.fromkeys((name for member in measured for name in member.components), 0.0)
    for name in parts:
        parts[name] = math.fsum(member.components.get(name, 0.0) for member in measured) / len(measured)
    found = {"reward": statistics.fmean(rewards), **{f"reward/{name}": value for name, value in parts.items()}}
    if len(rewards) > 1:
        found["reward_std"] = statistics.stdev(rewards)
    if any(member.success is not None for member in measured):
        found["correct_rate"] = sum(member.success is True for member in measured) / len(measured)
    return found


def _completions(measured: Sequence[GroupMember]) -> dict[str, float]:
    if not measured:
        return {}
    tokens = sum(member.completion_tokens for member in measured)
    endings = Counter(member.ending for member in measured)
    return {
        "parse_err_rate": sum(member.parse_error for member in measured) / len(measured),
        "avg_completion_length": tokens / len(measured),
        "total_completion_tokens": tokens,
        **{f"ending/{name}": count / len(measured) for name, count in endings.items()},
    }


def _groups(batch: Batch) -> dict[str, float]:
    found: dict[str, float] = {
        "failed_rollouts": sum(batch.failures.values()),
        **{f"failed_rollouts/{kind}": count for kind, count in batch.failures.items()},
        "skipped_groups": sum(group.skipped is not None for group in batch.groups),
    }
    if batch.groups:
        equal = sum(group.skipped == "zero_variance" for group in batch.groups)
        found["zero_variance_rate"] = equal / len(batch.groups)
    return found


def _staleness(measured: Sequence[GroupMember], step: int) -> dict[str, float]:
    """The step with number `step` trains the weights of step - 1."""
    updates = sampled_updates(sequence for member in measured for sequence in member.sequences)
    if not (total := updates.total()):
        return {}
    lags = {step - 1 - count: tokens for count, tokens in updates.items()}
    return {
        "stale_rate": sum(tokens for lag, tokens in lags.items() if lag) / total,
        "staleness_mean": sum(lag * tokens for lag, tokens in lags.items()) / total,
        "policy_lag": max(lags),
    }


def _perf(measured: Sequence[GroupMember], times: StepTimes) -> dict[str, float]:
    found = asdict(times)
    if times.step_s > 0:
        found["tokens_per_s"] = sum(member.completion_tokens for member in measured) / times.step_s
        found["rollouts_per_s"] = len(measured) / times.step_s
    return found

"""train: everything from a running stack and a config to a finished run folder.

TrainingLoop has the order of updates, publishing, metrics, evaluations and checkpoints, in every process. What the main
process does between two updates is in step_runner.py; how the trainer updates the policy, in trl/policy_trainer.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from anyio.from_thread import BlockingPortal

from rollyard.records.errors import Failure, RunError
from rollyard.records.jsonl import iter_jsonl, skip
from rollyard.records.manifest import ChangedParameters
from rollyard.records.rewards import is_measured
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import DatasetTasks
from rollyard.services.head.registry_client import StackClients
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.training.batch_source import StackBatchSource
from rollyard.training.checkpoints import Checkpoints, TrainingCheckpoint
from rollyard.training.groups import completion_tokens, has_parse_error
from rollyard.training.metrics_log import MakeTracker, MetricsLog, sinks_of
from rollyard.training.policy_trainer import PolicyTrainer, TrainerHooks
from rollyard.training.ray_trainer import SIGNALS, signals_to
from rollyard.training.run_folder import TrainingFolder, TrainingPaths, version_of_step
from rollyard.training.step_runner import Schedule, StackCalls, StackParts, StepRunner, Traces
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import TrainingStack
from rollyard.training.transfer_publisher import TransferPublisher
from rollyard.training.update import Update
from rollyard.training.weight_publisher import (
    ParityProbe,
    PolicyClient,
    Publisher,
    VersionFolders,
    WeightKind,
    WeightPublisher,
    resolved_method,
)


async def evaluate(
    step: int,
    *,
    stack: StackClients,
    tasks: DatasetTasks,
    config: TrainConfig,
    paths: TrainingPaths,
    print_line: Callable[[str], None],
) -> dict[str, float]:
    """Play every row with the weights after `step` updates, into a file of the run folder, and return the metrics
    without a prefix. An interrupted evaluation continues where it stopped.

    Raises RunError if the collection stops, for example because too many rollouts fail.
    """

    async def collect(plan: CollectionPlan) -> None:
        async with OpenCollection.opened(plan, tasks, stack) as collection:
            if await collection.run(print_line=print_line) == "stopped":
                raise RunError(f"the evaluation after {step} updates stopped: {collection.stopped_because}")

    settings, output = config.evaluation, paths.evaluation(step)
    output.parent.mkdir(parents=True, exist_ok=True)
    plan = CollectionPlan(
        output=output,
        agent=config.agent_name,
        repeats=settings.num_repeats,
        params=settings.responses_create_params,
        # The servers of a resumed run may have newer code. As in training, the rows are marked with it.
        accept_changed_code=True,
        limits=CollectionLimits(
            parallel=settings.num_samples_in_parallel,
            max_attempts=config.max_attempts,
            rollout_timeout_s=config.rollout_timeout_s,
            max_failure_rate=config.max_failure_rate,
        ),
    )
    try:
        await collect(plan)
    except ChangedParameters as error:
        # The servers have other settings since an earlier start. Rollouts of both must not be mixed.
        print_line(f"{output.name} is played from the start: {error}")
        await collect(replace(plan, overwrite=True))
    rows = (line.value for line in iter_jsonl(output, skip)) if output.exists() else iter(())
    return evaluation_metrics(rows, tasks.count * settings.num_repeats)


def evaluation_metrics(rows: Iterator[Json], expected: int) -> dict[str, float]:
    """Return the metrics of an evaluation of `expected` rollouts.

    Means are over the measured rollouts, as in training. `failed_rollouts` counts the others, which have no reward.
    """
    rewards: list[float] = []
    successes: list[bool] = []
    tokens = parse_errors = 0
    for row in rows:
        if not is_measured(row):
            continue
        rewards.append(float(row["reward"]))
        if isinstance(row.get("success"), bool):
            successes.append(row["success"])
        tokens += completion_tokens(row)
        parse_errors += has_parse_error(row)
    count = len(rewards)
    found: dict[str, float] = {"failed_rollouts": expected - count}
    if not count:
        return found
    found |= {
        "reward": sum(rewards) / count,
        "parse_err_rate": parse_errors / count,
        "avg_completion_length": tokens / count,
        "total_completion_tokens": tokens,
    }
    if successes:
        # Two names of the field for the same share: evaluations of datasets have an accuracy.
        found["correct_rate"] = found["accuracy"] = sum(successes) / count
    return found


TrainingEnd = Literal["complete", "interrupted"]
MakeTrainer = Callable[[TrainerHooks], PolicyTrainer]
MakeParts = Callable[[Mapping[str, int], PolicyTrainer], StackParts]
"""Creates the parts that call the stack, for a position in the data."""
_STATUS_S = 60.0


@dataclass(frozen=True, slots=True)
class MainProcess:
    """What only the main process of a training has."""

    folder: TrainingFolder
    portal: BlockingPortal
    """Runs coroutines in the event loop of the stack's clients."""
    stack: TrainingStack
    tasks: DatasetTasks
    """The dataset to train on."""
    evaluation_tasks: DatasetTasks | None = None
    """The dataset to evaluate on; None: no evaluation."""
    trackers: Mapping[str, MakeTracker] = field(default_factory=dict)
    """What starts the runs of the loggers `wandb` and `mlflow`."""


def is_main_process(environ: Mapping[str, str]) -> bool:
    """Return whether this process of `accelerate launch` or `torchrun` is the main one."""
    return environ.get("RANK", "0") == "0"


def train(
    config: TrainConfig, main: MainProcess | None, make_trainer: MakeTrainer, *, print_line: Callable[[str], None]
) -> TrainingEnd:
    """Train until the last step, the end of the data, or a signal. Must be called in the main thread.

    `main` is None in all processes but the main one. SIGINT and SIGTERM end training after the current update, with a
    checkpoint; the result is then `interrupted`. The same command resumes it.

    Raises OperatorError if the model or a setting is wrong, and RunError if training cannot continue; there is a
    checkpoint of the last complete update then.
    """
    if main is None:
        checkpoints = _checkpoints(config, TrainingPaths(config.output_dir), print_line)
        # The main process ends training for all, and its launcher signals every process.
        with _stop_on_signals(lambda signal: None):
            TrainingLoop(make_trainer, None, checkpoints, Schedule(config), None, version=version_of_step).run(None)
        return "complete"
    evaluated = main.evaluation_tasks
    main.folder.check_data(main.tasks.identity, evaluated.identity if evaluated is not None else None)
    make_parts = partial(_make_parts, config, main, print_line)
    return run_training(main.folder, main.portal, make_parts, make_trainer, main.trackers, print_line=print_line)


def run_training(
    folder: TrainingFolder,
    portal: BlockingPortal,
    make_parts: MakeParts,
    make_trainer: MakeTrainer,
    trackers: Mapping[str, MakeTracker],
    *,
    print_line: Callable[[str], None],
) -> TrainingEnd:
    """Train in the main process, as `train` does."""
    config, paths = folder.config, folder.paths
    checkpoints = _checkpoints(config, paths, print_line)
    found = checkpoints.newest()
    step = found.step if found else 0
    MetricsLog(paths.metrics).drop_after(step)
    if found is not None:
        print_line(f"resuming after {found.step} updates, from {found.folder}")
    elif folder.starts > 1:
        print_line(f"{paths.checkpoints} has no checkpoint: starting again with {config.model}")
    sinks = sinks_of(
        config.loggers,
        name=folder.name,
        config=config.model_dump(mode="json"),
        run_id=folder.run_id,
        trackers=trackers,
        max_steps=config.max_steps,
    )
    metrics = MetricsLog(paths.metrics, sinks)
    calls = StackCalls(portal)
    traces = Traces(paths.traces, folder.starts)
    logged = iter_jsonl(paths.metrics, skip) if paths.metrics.exists() else ()
    evaluated = {line.value["step"] for line in logged if any(name.startswith("eval/") for name in line.value)}
    schedule = Schedule(config, evaluated)
    # Each start has names of its own for the weights, because the engines may still have those of an earlier one, or of
    # other runs on a running stack.
    suffix = f"-{folder.run_id}" if config.head is not None else ""
    suffix += f"-r{folder.starts - 1}" if folder.starts > 1 else ""

    def version(step: int) -> str:
        return version_of_step(step) + suffix

    def stop(signal: str) -> None:
        calls.stop()
        print_line(f"{signal}: saving a checkpoint of the last complete update; a second signal ends at once")

    def make_main(trainer: PolicyTrainer) -> StepRunner:
        position: Mapping[str, int] = found.position if found else {}
        parts = make_parts(position, trainer)
        return StepRunner(config, calls, parts, metrics, traces, schedule, position, version, print_line)

    state = "failed"
    try:
        with _stop_on_signals(stop):
            loop = TrainingLoop(make_trainer, make_main, checkpoints, schedule, traces, version=version)
            try:
                loop.run(found)
            finally:
                step = loop.step
        state = "complete" if loop.is_complete else "interrupted"
    finally:
        metrics.close(failed=state == "failed")
        folder.record_end(state, step)
    print_line(f"training is {state} after {step} updates")
    return "complete" if state == "complete" else "interrupted"


class TrainingLoop:
    """Runs in every process. Only the main one has a StepRunner and traces: it calls the stack and writes the folder.

    Saving weights and checkpoints needs all processes, so whether it happens depends only on what all of them know.
    """

    def __init__(
        self,
        make_trainer: MakeTrainer,
        make_main: Callable[[PolicyTrainer], StepRunner] | None,
        checkpoints: Checkpoints,
        schedule: Schedule,
        traces: Traces | None,
        *,
        version: Callable[[int], str],
    ) -> None:
        self._trainer = make_trainer(self)
        self._checkpoints, self._schedule, self._traces, self._version = checkpoints, schedule, traces, version
        self._main = make_main(self._trainer) if make_main is not None else None
        self._saved = -1

    def run(self, checkpoint: TrainingCheckpoint | None) -> None:
        """Train from a checkpoint until training ends. The last complete update has a checkpoint then.

        Raises the main process's error.
        """
        try:
            folder = self._trainer.share(str(checkpoint.folder) if checkpoint else None)
            self._trainer.run(Path(folder) if folder else None)
            # Without an update, the next start begins with the initial model again.
            if self._trainer.step not in (0, self._saved):
                self._save()
            if self._main is not None and self._main.error is not None:
                raise self._main.error
        finally:
            if self._main is not None:
                self._main.close()

    def started(self) -> None:
        self._saved = self._trainer.step
        save = self._trainer.weights()
        if self._main is not None:
            self._main.started(self._trainer.step, save)

    def next_update(self, step: int) -> Update | None:
        assert self._main is not None, "only the main process plays"
        return self._main.next_update(step)

    def updated(self) -> None:
        step, save = self._trainer.step, self._trainer.weights()
        if self._main is not None:
            self._main.updated(step, self._trainer.metrics, save, self._trainer.token_pairs)
        if self._schedule.saves(step):
            self._save()

    @property
    def step(self) -> int:
        return self._trainer.step

    @property
    def is_complete(self) -> bool:
        """Whether the last update is done and evaluated. Only the main process knows."""
        return self._main is not None and self._main.is_complete

    def _save(self) -> None:
        step = self._trainer.step
        with nullcontext() if self._traces is None else self._traces.span("checkpoint", step):
            partial = self._checkpoints.partial(step) if self._main is None else self._checkpoints.begin(step)
            self._trainer.wait()
            self._trainer.save_state(partial)
            self._trainer.wait()
            if self._main is not None:
                self._checkpoints.commit(step, self._version(step), self._main.position)
        self._saved = step


def _checkpoints(config: TrainConfig, paths: TrainingPaths, print_line: Callable[[str], None]) -> Checkpoints:
    return Checkpoints(paths.checkpoints, keep=config.keep_checkpoints, print_line=print_line)


def _make_parts(
    config: TrainConfig,
    main: MainProcess,
    print_line: Callable[[str], None],
    position: Mapping[str, int],
    trainer: PolicyTrainer,
) -> StackParts:
    stack, paths = main.stack, main.folder.paths
    client = PolicyClient(stack.clients.client.transport, stack.policy_url, stack.token, config.policy_server)
    common: Any = {"config": config, "paths": paths, "print_line": print_line}
    evaluated = main.evaluation_tasks
    evaluation = None if evaluated is None else partial(evaluate, stack=stack.clients, tasks=evaluated, **common)
    source = StackBatchSource(stack, main.tasks, position=position, **common)
    probe = ParityProbe(client, trainer.log_probs, config.weights, dtype=config.optimizer.dtype)
    publisher = _publisher(config, paths, client, trainer, main.portal)

    async def close() -> None:
        await source.close()
        if isinstance(publisher, TransferPublisher):
            await publisher.close()

    return StackParts(
        source=source,
        publisher=publisher,
        evaluate=evaluation,
        measure_parity=probe.measure_if_due if trainer.has_whole_model else None,
        close=close,
    )


def _publisher(
    config: TrainConfig, paths: TrainingPaths, client: PolicyClient, trainer: PolicyTrainer, portal: BlockingPortal
) -> Publisher:
    """Return the publisher for `weights.method`. Raises RunError if the method is impossible."""
    settings, has_adapters = config.weights, config.optimizer.lora is not None
    try:
        status = portal.call(client.status, _STATUS_S)
    except Failure as failure:
        raise RunError(f"the policy's model server does not describe its engines: {failure}") from failure
    method = resolved_method(
        settings,
        trainer_has_gpu=trainer.has_gpu,
        engines_on_cpu=bool(status.get("on_cpu")),
        has_adapters=has_adapters,
        processes=1 if trainer.has_whole_model else 2,
    )
    if method == "files":
        kind: WeightKind = "adapter" if has_adapters else "weights"
        folders = VersionFolders(paths.weights, keep=settings.keep)
        return WeightPublisher(client, folders, timeout_s=settings.timeout_s, kind=kind)
    return TransferPublisher(client, trainer.sender(method), timeout_s=settings.timeout_s)


@contextmanager
def _stop_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` with the name of the first signal. The second one raises KeyboardInterrupt, and the third one ends
    the process. Must be used in the main thread.
    """
    count = 0

    def handle(number: int) -> None:
        nonlocal count
        count += 1
        if count == 1:
            stop(signal.Signals(number).name)
            return
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    with signals_to(handle):
        yield

"""Trains in a run folder: resumes from its newest checkpoint, and records how training ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from anyio.from_thread import BlockingPortal

from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.training.metrics.metrics_log import MetricsLog
from rollyard.training.metrics.metrics_sink import MetricsSink
from rollyard.training.metrics.sinks import sinks_of
from rollyard.training.run.checkpoints import Checkpoint, Checkpoints
from rollyard.training.run.policy_trainer import PolicyTrainer, TrainerHooks
from rollyard.training.run.run_folder import RunFolder
from rollyard.training.run.schedule import Schedule
from rollyard.training.run.stack_calls import StackCalls
from rollyard.training.run.stack_parts import StackParts
from rollyard.training.run.step_runner import StepRunner
from rollyard.training.run.stop_signals import stop_on_signals
from rollyard.training.run.traces import Traces
from rollyard.training.run.training_loop import TrainingLoop
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.train_config import TrainConfig
from rollyard.training.versions import version_of_step

TrainingEnd = Literal["complete", "interrupted"]
MakeTrainer = Callable[[TrainerHooks], PolicyTrainer]
"""Creates the trainer of this process."""
MakeParts = Callable[[Mapping[str, int], PolicyTrainer], StackParts]
"""Creates the parts that call the stack, for a position in the data."""


def run_training(
    folder: RunFolder,
    portal: BlockingPortal,
    make_parts: MakeParts,
    make_trainer: MakeTrainer,
    *,
    print_line: Callable[[str], None],
) -> TrainingEnd:
    """Train in the main process until the last step, the end of the data, or a signal.

    Raises what `train` raises.
    """
    config, paths = folder.config, folder.paths
    checkpoints = _checkpoints(config, paths, print_line)
    found = checkpoints.newest()
    step = found.step if found else 0
    MetricsLog(paths.metrics).drop_after(step)
    _print_start(found, config, folder, print_line)
    metrics = MetricsLog(paths.metrics, _sinks(folder))
    calls = StackCalls(portal)
    traces = Traces(paths.traces, folder.starts)
    schedule = Schedule(config, evaluated_steps(paths.metrics))
    version = _version_names(folder)

    def stop(signal: str) -> None:
        calls.stop()
        print_line(f"{signal}: saving a checkpoint of the last complete update; a second signal ends at once")

    def make_main(trainer: PolicyTrainer) -> StepRunner:
        position: Mapping[str, int] = found.position if found else {}
        parts = make_parts(position, trainer)
        return StepRunner(
            config, calls, parts, metrics, traces, schedule, position, version=version, print_line=print_line
        )

    state = "failed"
    try:
        with stop_on_signals(stop):
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


def run_other_process(
    config: TrainConfig, make_trainer: MakeTrainer, *, print_line: Callable[[str], None]
) -> TrainingEnd:
    """Train in a process that is not the main one."""
    checkpoints = _checkpoints(config, TrainingPaths(config.output_dir), print_line)
    # The main process ends training for all, and its launcher signals every process.
    with stop_on_signals(lambda signal: None):
        TrainingLoop(make_trainer, None, checkpoints, Schedule(config), None, version=version_of_step).run(None)
    return "complete"


def evaluated_steps(metrics: Path) -> set[int]:
    """Return the steps whose evaluations are in metrics.jsonl."""
    lines = iter_jsonl(metrics, skip) if metrics.exists() else ()
    return {line.value["step"] for line in lines if any(name.startswith("eval/") for name in line.value)}


def _version_names(folder: RunFolder) -> Callable[[int], str]:
    """Return the function that names the weights after so many updates. Each start has names of its own, because the
    engines may still have those of an earlier one. Those of a running stack may have been trained by other runs, too.
    """
    suffix = f"-{folder.run_id}" if folder.config.head is not None else ""
    suffix += f"-r{folder.starts - 1}" if folder.starts > 1 else ""
    return lambda step: version_of_step(step) + suffix


def _checkpoints(config: TrainConfig, paths: TrainingPaths, print_line: Callable[[str], None]) -> Checkpoints:
    return Checkpoints(paths.checkpoints, keep=config.keep_checkpoints, print_line=print_line)


def _sinks(folder: RunFolder) -> list[MetricsSink]:
    config = folder.config
    return sinks_of(
        config.loggers,
        name=folder.name,
        config=config.model_dump(mode="json"),
        run_id=folder.run_id,
        max_steps=config.max_steps,
    )


def _print_start(
    found: Checkpoint | None, config: TrainConfig, folder: RunFolder, print_line: Callable[[str], None]
) -> None:
    if found is not None:
        print_line(f"resuming after {found.step} updates, from {found.folder}")
    elif folder.starts > 1:
        print_line(f"{folder.paths.checkpoints} has no checkpoint: starting again with {config.model}")

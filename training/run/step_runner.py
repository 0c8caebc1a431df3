"""StepRunner: what the main process does between two updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rollyard.records.errors import RollyardError
from rollyard.training.batch import Batch
from rollyard.training.metrics.metrics_log import MetricsLog
from rollyard.training.metrics.step_metrics import StepTimes, step_metrics
from rollyard.training.run.policy_trainer import Save
from rollyard.training.run.schedule import Schedule
from rollyard.training.run.stack_calls import Interrupted, StackCalls
from rollyard.training.run.stack_parts import StackParts
from rollyard.training.run.step_play import play_step
from rollyard.training.run.traces import Traces
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.token_pairs import TokenPairs, write_pairs
from rollyard.training.train_config import TrainConfig
from rollyard.training.update import Update, update_of
from rollyard.training.weights.parity import probe_sequences


class StepRunner:
    """Plays, publishes, measures and evaluates, in the order that the trainer asks for.

    After an error or a request to stop, it does nothing more, so that training ends after the current update. The
    caller saves a checkpoint and raises `error`.
    """

    def __init__(
        self,
        config: TrainConfig,
        calls: StackCalls,
        parts: StackParts,
        metrics: MetricsLog,
        traces: Traces,
        schedule: Schedule,
        position: Mapping[str, int],
        *,
        version: Callable[[int], str],
        print_line: Callable[[str], None],
    ) -> None:
        """`position`: that of the first batch in the data. `version`: the name of the weights after so many updates."""
        self._config = config
        self._calls = calls
        self._parts = parts
        self._metrics = metrics
        self._traces = traces
        self._schedule = schedule
        self._version = version
        self._print_line = print_line
        self._batch: Batch | None = None
        self._update = Update((), ())
        self._began = self._updating = time.monotonic()
        self._warnings = set[str]()
        self.position = dict(position)
        """Position in the data after the latest update."""
        self.error: RollyardError | None = None
        """Why training cannot continue."""
        self.is_complete = False
        """True once the last update is done and evaluated."""

    def started(self, step: int, save: Save) -> None:
        """Publish the weights with which training starts, and evaluate them if that is due."""
        with self._guarded():
            self._publish(step, save)
            if self._schedule.evaluates_at_start(step):
                self._evaluate(step)

    def next_update(self, step: int) -> Update | None:
        """Play the episodes of a step; None if training ends."""
        self._began = time.monotonic()
        if self._is_ending:
            return None
        if self._schedule.is_last(step - 1):
            self.is_complete = True
            return None
        batch = None
        with self._guarded():
            with self._traces.span("rollouts", step):
                source, publisher = self._parts.source, self._parts.publisher
                batch = self._calls.call(play_step, source, publisher, step, self._print_line)
            if batch is None:
                self._print_line(f"the data is exhausted after {step - 1} updates")
                self._finish(step - 1)
                return None
            self._batch, self._update = batch, self._update_of(batch)
        self._updating = time.monotonic()
        return None if self._is_ending else self._update

    def updated(self, step: int, trainer: Mapping[str, float], save: Save, pairs: TokenPairs | None = None) -> None:
        """Publish the new weights, and report the step."""
        batch = self._batch
        assert batch is not None, "an update has a batch"
        trained = time.monotonic()
        self._traces.record("update", step, self._updating)
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
            self._traces.trained(batch, self._update)
            if pairs is not None:
                write_pairs(TrainingPaths(self._config.output_dir).token_pairs(step), pairs, batch, self._update)
            self._metrics.write(step, step_metrics(batch, trainer, times, parity=parity, update=self._update))
        if self._schedule.is_last(step):
            self._finish(step)
        elif self._schedule.evaluates(step):
            self._try_to_evaluate(step)

    def close(self) -> None:
        """Stop what still plays."""
        if self._parts.close is not None:
            self._calls.clean_up(self._parts.close)

    @property
    def _is_ending(self) -> bool:
        return self.error is not None or self._calls.stopped

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Interrupted:
            pass
        except RollyardError as error:
            self.error = self.error or error

    def _update_of(self, batch: Batch) -> Update:
        config = self._config
        temperature = float(config.responses_create_params.get("temperature", 1.0))
        return update_of(batch.groups, max_seq_len=config.optimizer.max_seq_len, temperature=temperature)

    def _publish(self, step: int, save: Save) -> float:
        with self._traces.span("publish", step):
            published = self._calls.call(self._parts.publisher.publish, self._version(step), save)
        # Every version of a model has the same ones, such as that engines convert its tensors.
        for warning in dict.fromkeys(published.warnings):
            if warning not in self._warnings:
                self._warnings.add(warning)
                self._print_line(f"weights {published.version}: {warning}")
        return published.seconds

    def _measure_parity(self, step: int) -> Mapping[str, float]:
        ids = [sequence.prompt_ids + sequence.completion_ids for sequence in self._update.sequences]
        sequences = probe_sequences(ids)
        if self._parts.measure_parity is None or not sequences:
            return {}
        with self._traces.span("parity", step):
            return self._calls.call(self._parts.measure_parity, step, self._version(step), sequences)

    def _evaluate(self, step: int) -> None:
        if self._parts.evaluate is None:
            return
        with self._traces.span("evaluation", step):
            found = self._calls.call(self._parts.evaluate, step)
        self._metrics.write(step, {f"eval/{name}": value for name, value in found.items()})
        self._schedule.evaluated(step)

    def _try_to_evaluate(self, step: int) -> None:
        if not self._is_ending:
            with self._guarded():
                self._evaluate(step)

    def _finish(self, step: int) -> None:
        if self._schedule.evaluates_last(step):
            self._try_to_evaluate(step)
        self.is_complete = not self._is_ending

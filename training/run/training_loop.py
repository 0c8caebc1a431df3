"""TrainingLoop: the order of updates, publishing, metrics, evaluations and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollyard.training.run.checkpoints import Checkpoint, Checkpoints
from rollyard.training.run.policy_trainer import PolicyTrainer, TrainerHooks
from rollyard.training.run.schedule import Schedule
from rollyard.training.run.step_runner import StepRunner
from rollyard.training.run.traces import Traces
from rollyard.training.update import Update


class TrainingLoop:
    """Runs in every process. Only the main one has a StepRunner and traces: it calls the stack and writes the folder.

    Saving weights and checkpoints needs all processes, so whether it happens depends only on what all of them know.
    """

    def __init__(
        self,
        make_trainer: Callable[[TrainerHooks], PolicyTrainer],
        make_main: Callable[[PolicyTrainer], StepRunner] | None,
        checkpoints: Checkpoints,
        schedule: Schedule,
        traces: Traces | None,
        *,
        version: Callable[[int], str],
    ) -> None:
        self._trainer = make_trainer(self)
        self._checkpoints = checkpoints
        self._schedule = schedule
        self._main = make_main(self._trainer) if make_main is not None else None
        self._traces = traces
        self._version = version
        self._saved = -1

    def run(self, checkpoint: Checkpoint | None) -> None:
        """Train from a checkpoint until training ends. The last complete update has a checkpoint then.

        Raises the main process's error.
        """
        try:
            self._run(checkpoint)
        finally:
            if self._main is not None:
                self._main.close()

    def _run(self, checkpoint: Checkpoint | None) -> None:
        folder = self._trainer.share(str(checkpoint.folder) if checkpoint else None)
        self._trainer.run(Path(folder) if folder else None)
        # Without an update, the next start begins with the initial model again.
        if self._trainer.step not in (0, self._saved):
            self._save()
        if self._main is not None and self._main.error is not None:
            raise self._main.error

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
        """Number of updates so far."""
        return self._trainer.step

    @property
    def is_complete(self) -> bool:
        """Whether the last update is done and evaluated. Only the main process knows."""
        return self._main is not None and self._main.is_complete

    def _save(self) -> None:
        step = self._trainer.step
        if self._main is None:
            self._trainer.wait()
            self._trainer.save_state(self._checkpoints.partial(step))
            self._trainer.wait()
        else:
            assert self._traces is not None, "the main process has traces"
            with self._traces.span("checkpoint", step):
                folder = self._checkpoints.begin(step)
                self._trainer.wait()
                self._trainer.save_state(folder)
                self._trainer.wait()
                self._checkpoints.commit(step, self._version(step), self._main.position)
        self._saved = step

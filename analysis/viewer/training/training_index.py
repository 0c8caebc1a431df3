"""TrainingIndex: the metrics of a training run, and the rollouts of the steps that were looked at."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.training.metrics_file import MetricsFile
from rollyard.analysis.viewer.api.api_records import Overview, TrainingStatus
from rollyard.analysis.viewer.index.library import FileIndex, UnknownRun
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.analysis.viewer.training.training_folder import TrainingFolder, facts_of, state_of
from rollyard.records.rollouts.status_file import read_status
from rollyard.records.types import CollectionStatus


class TrainingIndex(FileIndex):
    """A run has as many files as steps, so that they are opened only when they are looked at.

    Numbers of runs follow from steps (`rollouts_number`, `evaluation_number`), which makes addresses permanent.
    """

    def __init__(self, root: Path, *, version: str = "", threshold: float | None = None, workers: int | None = None):
        super().__init__([], version=version, threshold=threshold, workers=workers)
        self.folder = TrainingFolder(root)
        self.metrics = MetricsFile(self.folder.metrics)
        self.reading = threading.Lock()
        """Held while `metrics` changes or is read."""
        self._opening = threading.Lock()

    def find(self, number: int) -> RunFile:
        """Return the rollout file with this number, and open it if necessary. Raises UnknownRun if it is missing."""
        with self._opening:
            if (run := self._runs.get(number)) is not None:
                return run
            step, is_evaluation = divmod(number, 2)
            path = (self.folder.evaluations() if is_evaluation else self.folder.rollouts()).get(step)
            if path is None:
                kind = "evaluation" if is_evaluation else "rollout"
                raise UnknownRun(f"the training run has no {kind} file of step {step}")
            run = self._opened(number, f"evaluation after step {step}" if is_evaluation else f"step {step}", path)
            run.advance()  # a first part, so that the page has something to show
            self._runs[number] = run
            return run

    def overview(self, wanted: Sequence[int] = ()) -> Overview:
        """Return the state of the training run and of the opened files. Those in `wanted` are opened if they exist."""
        for number in wanted:
            try:
                self.find(number)
            except UnknownRun:
                continue
        status = self.status()
        return super().overview().model_copy(update={"title": status.name, "training": status})

    def status(self) -> TrainingStatus:
        """Return the state of the training run."""
        rollouts, evaluations = self.folder.rollouts(), self.folder.evaluations()
        record = self.folder.record()
        with self.reading:
            steps = self.metrics.steps
            revision, updated = self.metrics.revision, self.metrics.updated
        return TrainingStatus(
            name=displayable(self.folder.root.resolve().name),
            path=displayable(str(self.folder.root), 4096),
            state=state_of(record),
            facts=facts_of(record),
            revision=revision,
            steps=len(steps),
            last_step=steps[-1] if steps else None,
            updated=updated,
            rollouts=list(rollouts),
            evaluations=list(evaluations),
            token_pairs=bool(self.folder.token_pairs()),
            collecting=_collecting(list(rollouts.values())),
        )

    def _advance(self, pool: ProcessPoolExecutor | None) -> bool:
        with self.reading:
            self.metrics.advance()
        return super()._advance(pool)


def rollouts_number(step: int) -> int:
    """Return the number of a step's rollout file."""
    return 2 * step


def evaluation_number(step: int) -> int:
    """Return the number of the rollout file of the evaluation after a step."""
    return 2 * step + 1


def _collecting(rollouts: Sequence[Path]) -> CollectionStatus | None:
    return read_status(rollouts[-1]) if rollouts else None

"""Schedule: after which updates there is a checkpoint or an evaluation."""

from __future__ import annotations

from collections.abc import Collection

from rollyard.training.train_config import TrainConfig


class Schedule:
    """`evaluated_steps`: the steps whose evaluations are in metrics.jsonl already."""

    def __init__(self, config: TrainConfig, evaluated_steps: Collection[int] = ()) -> None:
        self._config = config
        self._evaluation = config.evaluation
        self._evaluated = set(evaluated_steps)

    def is_last(self, step: int) -> bool:
        """Return whether no update follows this one. False with max_steps 0, where the end of the data decides."""
        return bool(self._config.max_steps) and step >= self._config.max_steps

    def saves(self, step: int) -> bool:
        """Return whether there is a checkpoint after this update."""
        interval = self._config.checkpoint_interval
        return self.is_last(step) or (bool(interval) and step % interval == 0)

    def evaluates(self, step: int) -> bool:
        """Return whether there is an evaluation after this update, unless it is the last one."""
        interval = self._evaluation.interval
        return bool(interval) and step % interval == 0 and step not in self._evaluated

    def evaluates_last(self, step: int) -> bool:
        """Return whether there is an evaluation after this update, the last one."""
        return step not in self._evaluated

    def evaluates_at_start(self, step: int) -> bool:
        """Return whether the weights with which training starts are evaluated: before the first update, or because an
        earlier process stopped before the evaluation was complete.
        """
        if step == 0:
            return self._evaluation.before_start and step not in self._evaluated
        return self.evaluates(step) or (self.is_last(step) and self.evaluates_last(step))

    def evaluated(self, step: int) -> None:
        """Note that an evaluation is complete."""
        self._evaluated.add(step)

"""TrainPlan: what a training run will do, after its config has been checked and before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.analysis.charts.labels import pluralize
from rollyard.records.io.terminal import plain_line
from rollyard.services.datasets.tasks import Tasks
from rollyard.training.run.initial_model import InitialModel
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.train_config import TrainConfig


@dataclass(frozen=True)
class TrainPlan:
    """A checked training run."""

    config: TrainConfig
    here: Path
    """The working directory, in which the servers run."""
    model: InitialModel
    gpus: Sequence[str] | None
    """GPUs of this host; None if there are none."""
    tasks: Tasks
    evaluation_tasks: Tasks | None
    notes: Sequence[str] = ()

    @property
    def paths(self) -> TrainingPaths:
        return TrainingPaths(self.config.output_dir)

    def heading(self) -> str:
        """Return what the run does, in a few lines."""
        config, tasks = self.config, self.tasks
        rollouts = config.groups_per_step * config.group_size
        each = (
            f"{pluralize(config.groups_per_step, 'task')} x {config.group_size} = {pluralize(rollouts, 'rollout')} each"
        )
        steps = pluralize(config.max_steps, "step") if config.max_steps else f"all rows, {config.epochs} times"
        data = config.input_jsonl_fpath or (config.data if isinstance(config.data, str) else "mixture")
        evaluated = self.evaluation_tasks
        lines = [
            f"model      {self.model.name}, trained on {'a CPU' if self.gpus is None else f'GPU {self.gpus[0]}'}",
            f"agent      {', '.join(sorted(tasks.agents))}",
            f"data       {data}: {pluralize(tasks.count, 'task')}",
            f"updates    {steps} of {config.loss.algorithm}, {each}",
            f"evaluation {_evaluation(config, evaluated)}",
            f"folder     {config.output_dir}",
        ]
        return "\n".join(plain_line(line) for line in [*lines, *(f"note: {note}" for note in self.notes)])


def _evaluation(config: TrainConfig, tasks: Tasks | None) -> str:
    if tasks is None:
        return "none (evaluation.input_jsonl_fpath is not set)"
    settings = config.evaluation
    when = f"every {settings.interval} steps" if settings.interval else "at the end"
    before = "before the first step and " if settings.before_start else ""
    return f"{settings.input_jsonl_fpath}: {pluralize(tasks.count, 'task')}, {before}{when}"

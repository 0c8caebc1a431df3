"""Evaluator: plays the evaluation dataset with the current weights, and computes the metrics `eval/...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.jsonl import iter_jsonl, skip
from rollyard.records.manifest import ChangedParameters
from rollyard.records.rewards import is_measured
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Tasks
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection, StackClients
from rollyard.services.rollouts.collector import Limits
from rollyard.training.groups import completion_tokens, has_parse_error
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.train_config import TrainConfig


class Evaluator:
    """Evaluates into files of the run folder. An interrupted evaluation continues where it stopped."""

    def __init__(
        self,
        stack: StackClients,
        tasks: Tasks,
        config: TrainConfig,
        paths: TrainingPaths,
        *,
        print_line: Callable[[str], None],
    ) -> None:
        self._stack = stack
        self._tasks = tasks
        self._config = config
        self._paths = paths
        self._print_line = print_line

    async def evaluate(self, step: int) -> dict[str, float]:
        """Play every row with the weights after `step` updates, and return the metrics without a prefix.

        Raises RunError if the collection stops, for example because too many rollouts fail.
        """
        output = self._paths.evaluation(step)
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            await self._collect(self._plan(output), step)
        except ChangedParameters as error:
            # The servers have other settings since an earlier start. Rollouts of both must not be mixed.
            self._print_line(f"{output.name} is played from the start: {error}")
            await self._collect(self._plan(output, overwrite=True), step)
        return evaluation_metrics(_rows(output), self._tasks.count * self._config.evaluation.num_repeats)

    async def _collect(self, plan: CollectionPlan, step: int) -> None:
        opened = OpenCollection.opened(plan, self._tasks, self._stack)
        async with opened as collection:
            state = await collection.run(print_line=self._print_line)
            if state == "stopped":
                raise RunError(f"the evaluation after {step} updates stopped: {collection.stopped_because}")

    def _plan(self, output: Path, *, overwrite: bool = False) -> CollectionPlan:
        settings, config = self._config.evaluation, self._config
        return CollectionPlan(
            output=output,
            agent=config.agent_name,
            repeats=settings.num_repeats,
            params=settings.responses_create_params,
            overwrite=overwrite,
            # The servers of a resumed run may have newer code. As in training, the rows are marked with it.
            accept_changed_code=True,
            limits=Limits(
                parallel=settings.num_samples_in_parallel,
                max_attempts=config.max_attempts,
                rollout_timeout_s=config.rollout_timeout_s,
                max_failure_rate=config.max_failure_rate,
            ),
        )


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


def _rows(output: Path) -> Iterator[Json]:
    return (line.value for line in iter_jsonl(output, skip)) if output.exists() else iter(())

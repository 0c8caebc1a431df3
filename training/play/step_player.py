"""StepPlayer: plays the episodes of one step, or finds them on disk, and makes a batch of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollyard.records.errors import Failure, RunError
from rollyard.records.rollouts.code_history import ChangedCode
from rollyard.records.rollouts.manifest import ChangedParameters
from rollyard.records.rollouts.rollout_keys import task_key
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Rollout, Tasks
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import Limits
from rollyard.training.batch import Batch
from rollyard.training.groups.advantages import Group, groups_of
from rollyard.training.play.step_files import StepFiles, StepRecord, played_steps, recorded_steps
from rollyard.training.play.step_members import STALE, MemberRules, OtherWeights, StepMembers, read_members
from rollyard.training.play.step_tasks import Sampling, StepTasks, rows_at
from rollyard.training.play.task_order import Draw, OrderPosition, TaskOrder
from rollyard.training.run_paths import TrainingPaths
from rollyard.training.sequences.training_sequence import SequenceRules
from rollyard.training.stack.training_stack import TrainingStack
from rollyard.training.train_config import TrainConfig

MAX_EXTRA = 3
"""With `resample`, a step plays at most this many times its number of groups in addition."""
MAX_RETURNS = 2
"""How often a row goes back into the order because its rollouts failed."""
_SETTINGS = (
    *("model", "seed", "shuffle", "groups_per_step", "group_size", "min_group_members", "resample", "max_staleness"),
    *("endings", "loss", "optimizer", "policy_server"),
)
"""Keys of the config that determine the rollouts of a step or the weights that play them, besides those in the
manifest of its collection."""
_NOT_SETTINGS = ("micro_token_budget", "gradient_checkpointing", "accelerate_config")
"""Keys of the optimizer that change only how an update is computed."""


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """A batch, and the position in the data after it."""

    batch: Batch
    position: OrderPosition


class StepPlayer:
    """Plays steps one after the other."""

    def __init__(
        self,
        stack: TrainingStack,
        data: Tasks,
        config: TrainConfig,
        paths: TrainingPaths,
        order: TaskOrder,
        *,
        seeded: bool,
        print_line: Callable[[str], None],
    ) -> None:
        self._stack = stack
        self._data = data
        self._config = config
        self._paths = paths
        self._order = order
        self._print_line = print_line
        loss = config.loss
        sequences = SequenceRules(loss.constrained_turns, loss.assumed_temperature)
        self._rules = MemberRules(sequences, config.endings, stack.policy_servers, config.max_staleness)
        self._params = dict(config.responses_create_params)
        self._sampling = Sampling(config.seed, self._params.pop("metadata", None)) if seeded else None
        settings = config.model_dump(mode="json", include=set(_SETTINGS), exclude={"optimizer": set(_NOT_SETTINGS)})
        self._settings: Json = {**settings, "seeded": seeded}
        self._begun = 0
        """The last step of which this process played episodes."""

    async def play(self, step: int, start: OrderPosition) -> PlayedStep | None:
        """Return the batch of a step; None if the data is exhausted. Files of the step are used again if this run would
        have written them, and otherwise renamed.

        Raises RunError if too many rollouts fail, a rollout cannot be trained on, or the stack cannot be reached;
        OperatorError if it does not have the agents of the tasks.
        """
        files = StepFiles(self._paths.rollouts(step))
        if files.exist:
            try:
                return await self._resumed(files, step, start)
            except OtherWeights as error:
                self._set_aside(files, str(error))
            except (ChangedParameters, ChangedCode) as error:
                # The last line is advice for ng_collect_rollouts.
                self._set_aside(files, str(error).rpartition("\n")[0])
        draws, _ = self._order.take(start, self._config.groups_per_step)
        if not draws:
            return None
        return await self._play(files, step, start, self._new_record(start, draws))

    def _new_record(self, start: OrderPosition, draws: Sequence[Draw]) -> StepRecord:
        rows = [draw.row for draw in draws]
        return StepRecord(settings=self._settings, start=start.record(self._order.rows), rows=rows)

    async def _resumed(self, files: StepFiles, step: int, start: OrderPosition) -> PlayedStep:
        record = files.record()
        problem = self._why_not(record, step, start)
        if problem or record is None:
            raise OtherWeights(problem)
        return await self._play(files, step, start, record)

    def _why_not(self, record: StepRecord | None, step: int, start: OrderPosition) -> str:
        """Return why rollouts on disk are not those of this run; empty if they are."""
        if record is None:
            return "there is no record of its tasks"
        draws, _ = self._order.take(start, len(record.rows))
        if record.settings != self._settings:
            changed = sorted(name for name in self._settings if record.settings.get(name) != self._settings[name])
            return f"it was played with other settings ({', '.join(changed)})"
        if self._new_record(start, draws).rows != record.rows or record.start != start.record(self._order.rows):
            return "it has other tasks"
        if not record.complete and self._config.max_staleness and self._begun != step:
            return "it is incomplete, and the weights that began it no longer exist"
        return ""

    async def _play(self, files: StepFiles, step: int, start: OrderPosition, record: StepRecord) -> PlayedStep:
        """Play the tasks of the record that have not been played, and with `resample` others for skipped groups."""
        config = self._config
        limit = config.groups_per_step * (1 + MAX_EXTRA if config.resample else 1)
        while True:
            draws, position = self._order.take(start, len(record.rows))
            rows = await asyncio.to_thread(self._rows, draws)
            tasks = StepTasks(self._data, draws, rows, first=record.played, sampling=self._sampling)
            await self._collect(files, step, tasks, record)
            members = await self._members(files, step, rows)
            if not record.complete:
                self._check(files, step, members)
            if record.played < len(draws):
                record = record.model_copy(update={"played": len(draws)})
                files.write(record)
            groups = self._groups(members)
            missing = config.groups_per_step - sum(group.skipped is None for group in groups)
            missing = min(missing, limit - len(draws))
            more, _ = self._order.take(start, len(draws) + missing) if missing > 0 else (draws, position)
            if record.complete or len(more) == len(draws):
                break
            self._print_line(f"step {step}: {len(more) - len(draws)} more tasks in place of skipped groups")
            record = record.model_copy(update={"rows": [draw.row for draw in more]})
        if not record.complete:
            files.write(record.model_copy(update={"complete": True}))
        again = [draws[index] for index in sorted(members.retryable) if groups[index].skipped == "too_few_members"]
        position = self._order.put_back(position, again, MAX_RETURNS)
        stale = Counter({STALE: members.stale} if members.stale else {})
        batch = Batch(step, tuple(groups), position.record(self._order.rows), failures=members.failures + stale)
        return PlayedStep(batch, position)

    def _rows(self, draws: Sequence[Draw]) -> list[Rollout]:
        found = rows_at(self._data, {draw.row for draw in draws})
        return [found[draw.row] for draw in draws]

    async def _collect(self, files: StepFiles, step: int, tasks: StepTasks, record: StepRecord) -> None:
        """Play what is missing; of a step that is complete, only check that the files are those of this collection."""
        if record.played < tasks.count:
            self._set_aside_later(step)
            files.write(record)
        config, agents = self._config, self._data.agents
        plan = CollectionPlan(
            files.paths.output,
            config.agent_name,
            config.group_size,
            params=self._params,
            limits=Limits(
                config.num_samples_in_parallel, config.max_attempts, config.rollout_timeout_s, config.max_failure_rate
            ),
            is_final=lambda kind, server: self._rules.is_final(kind, server, agents),
        )
        try:
            async with OpenCollection.opened(plan, tasks, self._stack.clients, print_line=self._print_line) as opened:
                for note in opened.notes:
                    self._print_line(note)
                if record.played == tasks.count:
                    return
                await opened.run(print_line=self._print_line)
        except Failure as failure:
            raise RunError(f"step {step}: the head of the stack cannot be reached: {failure}") from failure
        if opened.stopped_because:
            raise RunError(
                f"step {step}: {opened.stopped_because}. Failures are in {files.paths.failures}. Once the cause is "
                "fixed, the same training continues: rollouts that have ended are kept, unless code has changed"
            )

    async def _members(self, files: StepFiles, step: int, rows: Sequence[Rollout]) -> StepMembers:
        keys = _group_keys([task_key(row.row) for row in rows])
        return await asyncio.to_thread(read_members, files, keys, self._config.group_size, step, self._rules)

    def _groups(self, members: StepMembers) -> list[Group]:
        scale = self._config.loss.resolved.scale
        return groups_of(members.members, scale=scale, min_members=self._config.min_group_members)

    def _check(self, files: StepFiles, step: int, members: StepMembers) -> None:
        """Raise RunError if too many rollouts failed, OtherWeights if all others have old weights."""
        count, failed = len(members.members), members.failures.total()
        if failed > self._config.max_failure_rate * count:
            [(kind, _)] = members.failures.most_common(1)
            last = members.last_failure or {}
            raise RunError(
                f"step {step}: {failed} of {count} rollouts failed, more than max_failure_rate="
                f"{self._config.max_failure_rate:g}; most frequent kind: {kind}; the last failure: "
                f"{last.get('server')}: {last.get('detail')!s:.300}. All are in {files.paths.failures}. Once the cause "
                "is fixed, the same command plays only the failed ones again"
            )
        if members.stale and members.stale == count - failed:
            raise OtherWeights(
                f"step {step}: all rollouts were sampled with weights that are more than {self._config.max_staleness} "
                "updates old: the engines do not have the current weights (see GET /weights of the policy's model "
                "server)"
            )

    def _set_aside_later(self, step: int) -> None:
        """Rename the files of later steps, and the evaluations from this step on: the weights that played them will not
        exist again.
        """
        self._begun = step
        reason = "the weights that played it no longer exist"
        recorded = recorded_steps(self._paths.rollouts(step).parent)
        # The last first: if this process ends in between, no step is missing before one that remains.
        for later in reversed([number for number in recorded if number > step]):
            self._set_aside(StepFiles(self._paths.rollouts(later)), reason)
        for number in played_steps(self._paths.evaluation(step).parent):
            if number >= step:
                self._set_aside(StepFiles(self._paths.evaluation(number)), reason)

    def _set_aside(self, files: StepFiles, reason: str) -> None:
        renamed, output = files.set_aside(), files.paths.output
        kind = "evaluation " if output.parent == self._paths.evaluation(0).parent else ""
        self._print_line(f"{kind}{output.name} is not used: {reason}. Its files were renamed ({renamed[-1].name}, ...)")


def _group_keys(keys: Sequence[str]) -> list[str]:
    """Return a key for each task of a step. A task that occurs more than once has a group for each time."""
    seen = Counter[str]()
    unique = []
    for key in keys:
        seen[key] += 1
        unique.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return unique

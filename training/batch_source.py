"""StackBatchSource: plays the episodes of a training run on a stack, with the collector, and returns them as batches.

TaskOrder says which rows of the dataset each step plays. StepPlayer plays the episodes of one step, or finds them on
disk, and makes a batch of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.records.errors import Failure, RunError
from rollyard.records.manifest import ChangedCode, ChangedParameters
from rollyard.records.rollout_keys import task_key
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import DatasetTasks, Rollout
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.training.groups import groups_of
from rollyard.training.run_folder import TrainingPaths
from rollyard.training.step_files import (
    RECORD,
    ROLLOUTS,
    STALE,
    MemberRules,
    OtherWeights,
    StepFiles,
    StepMembers,
    StepRecord,
    read_members,
    steps_in,
)
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.training_stack import TrainingStack
from rollyard.training.update import Batch, BatchSource

_AGAIN = "again"


@dataclass(frozen=True, slots=True, order=True)
class Draw:
    """One use of a row."""

    epoch: int
    row: int
    """Index of the row in the dataset, from 0."""
    returns: int = 0
    """How often the row has gone back into the order because its rollouts failed."""


@dataclass(frozen=True, slots=True)
class OrderPosition:
    """Position in the order. As a mapping of integers, it is part of a checkpoint."""

    epoch: int = 0
    index: int = 0
    """Number of rows of the epoch that have been drawn."""
    returned: tuple[Draw, ...] = ()
    """Rows that are drawn again at the end of the epoch, sorted."""

    def record(self, rows: int) -> dict[str, int]:
        """Return the position for the checkpoint; `rows`: those of the dataset."""
        again = {f"{_AGAIN}_{draw.epoch}_{draw.row}": draw.returns for draw in self.returned}
        return {"rows": rows, "epoch": self.epoch, "index": self.index, **again}


class TaskOrder:
    """The order of a dataset's rows: that of the file, or one for each epoch that depends only on seed and epoch.

    Rows that went back are drawn after the last row of the epoch, so that they do not change the order of the others.
    """

    def __init__(self, rows: int, *, seed: int, shuffle: bool, epochs: int | None) -> None:
        """`epochs`: how often each row is drawn; None: without end."""
        self.rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._known: tuple[int, list[int]] = (-1, [])

    def position(self, record: Mapping[str, int]) -> OrderPosition:
        """Return the position in a checkpoint; that of the start if `record` is empty.

        Raises RunError if the dataset had another number of rows.
        """
        if record.get("rows", self.rows) != self.rows:
            raise RunError(
                f"the dataset has {self.rows} rows, but it had {record['rows']} when the checkpoint was saved: restore "
                "the dataset, or train into another output_dir"
            )
        again = [(name.split("_"), count) for name, count in record.items() if name.startswith(f"{_AGAIN}_")]
        returned = sorted(Draw(int(parts[1]), int(parts[2]), count) for parts, count in again)
        return OrderPosition(record.get("epoch", 0), record.get("index", 0), tuple(returned))

    def take(self, position: OrderPosition, count: int) -> tuple[list[Draw], OrderPosition]:
        """Return the next `count` draws and the position after them; fewer draws if the order ends.

        Taking rows one by one gives the same draws as taking them together.
        """
        drawn: list[Draw] = []
        epoch, index, returned = position.epoch, position.index, list(position.returned)
        while len(drawn) < count:
            if index < self.rows:
                drawn.append(Draw(epoch, self._epoch(epoch)[index]))
                index += 1
            elif returned:
                drawn.append(returned.pop(0))
            elif self._epochs is None or epoch + 1 < self._epochs:
                epoch, index = epoch + 1, 0
            else:
                break
        return drawn, OrderPosition(epoch, index, tuple(returned))

    def put_back(self, position: OrderPosition, draws: Iterable[Draw], max_returns: int) -> OrderPosition:
        """Return the position with these draws added to the end of its epoch, except those that went back
        `max_returns` times already.
        """
        again = [replace(draw, returns=draw.returns + 1) for draw in draws if draw.returns < max_returns]
        return replace(position, returned=tuple(sorted([*position.returned, *again])))

    def _epoch(self, number: int) -> list[int]:
        if self._known[0] != number:
            order = list(range(self.rows))
            if self._shuffle:
                random.Random(f"{self._seed}/{number}").shuffle(order)
            self._known = (number, order)
        return self._known[1]


class StepTasks:
    """Implements `Tasks`. A task's index is its place in the step, because a step may use a row more than once."""

    def __init__(
        self,
        data: DatasetTasks,
        draws: Sequence[Draw],
        rows: Sequence[Rollout],
        *,
        first: int,
    ) -> None:
        """`rows`: the row of each draw. `first`: index of the first task to play; those before it have been played."""
        self.count = len(draws)
        # Not only those of the step's rows: tasks that are added later must not change the collection's identity.
        self.agents = data.agents
        self.digest = data.digest
        self.files: set[Path] = data.files
        self.identity: Json = {**data.identity, "rows": len(draws), "task_rows": [draw.row for draw in draws]}
        self._rows = rows
        self._first = first

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of each task that is to be played."""
        for index in range(self._first, self.count):
            for repeat in range(repeats):
                yield replace(self._rows[index], task_index=index, rollout_index=repeat)


def rows_at(data: DatasetTasks, indices: Collection[int]) -> dict[int, Rollout]:
    """Return rows of a dataset by index, in one pass. Raises RunError if one of them has changed."""
    wanted, found = set(indices), dict[int, Rollout]()
    for rollout in data.rollouts(1):
        if rollout.task_index in wanted:
            found[rollout.task_index] = rollout
            if len(found) == len(wanted):
                break
    return found


class StackBatchSource(BatchSource):
    """The batches of consecutive steps. When the trainer asks for a step, those up to `max_staleness` later may be
    played, one after the other, while it trains. Their rollouts are at most that many updates old when used.
    """

    def __init__(
        self,
        stack: TrainingStack,
        tasks: DatasetTasks,
        config: TrainConfig,
        paths: TrainingPaths,
        position: Mapping[str, int],
        *,
        print_line: Callable[[str], None],
    ) -> None:
        """`tasks`: the dataset, with `limit` applied. `position`: `Batch.position` of the last trained step; empty at
        the start of a run. Raises RunError if it does not belong to the dataset.
        """
        self._order = TaskOrder(
            tasks.count,
            seed=config.seed,
            shuffle=config.shuffle,
            epochs=None if config.max_steps else config.epochs,
        )
        self._position = self._order.position(position)
        self._player = StepPlayer(stack, tasks, config, paths, self._order, print_line=print_line)
        self._ahead = config.max_staleness
        self._last = config.max_steps
        self._requested = 0
        self._request = asyncio.Event()
        self._played: asyncio.Queue[Batch | Exception | None] = asyncio.Queue()
        self._producer: asyncio.Task[None] | None = None

    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of a step, which is the one after that of the previous call; None after the last one. After
        an error or a cancellation, the step can be requested again.

        Raises RunError as described in `BatchSource`, and OperatorError if the stack lacks the agents of the tasks.
        """
        started = time.monotonic()
        if self._producer is not None and self._producer.cancelling():
            await self.close()
        self._requested = step
        if self._producer is None:
            self._played = asyncio.Queue()
            self._producer = asyncio.create_task(self._produce(step, self._position, self._played))
        self._request.set()
        try:
            played = await self._played.get()
        except asyncio.CancelledError:
            # Not awaited: whoever cancels this call may cancel every `await` in it. `close` waits for the end.
            self._producer.cancel()
            raise
        if not isinstance(played, Batch):
            await self.close()
            if played is not None:
                raise played
            return None
        assert played.step == step, "steps are consecutive"
        self._position = self._order.position(played.position)
        return replace(played, wait_s=time.monotonic() - started)

    async def close(self) -> None:
        """Stop playing. Episodes in flight are abandoned, and those that have ended stay on disk."""
        producer, self._producer = self._producer, None
        if producer is not None:
            if not producer.cancelling():
                producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)

    async def _produce(
        self, step: int, position: OrderPosition, played_steps: asyncio.Queue[Batch | Exception | None]
    ) -> None:
        while not self._last or step <= self._last:
            while step > self._requested + self._ahead:
                self._request.clear()
                await self._request.wait()
            try:
                played = await self._player.play(step, position)
            except Exception as error:
                played_steps.put_nowait(error)
                return
            except asyncio.CancelledError:
                played_steps.put_nowait(RunError(f"step {step} was stopped while it was played"))
                raise
            played_steps.put_nowait(played)
            if played is None:
                return
            position = self._order.position(played.position)
            step += 1
        played_steps.put_nowait(None)


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


class StepPlayer:
    def __init__(
        self,
        stack: TrainingStack,
        data: DatasetTasks,
        config: TrainConfig,
        paths: TrainingPaths,
        order: TaskOrder,
        *,
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
        settings = config.model_dump(mode="json", include=set(_SETTINGS), exclude={"optimizer": set(_NOT_SETTINGS)})
        self._settings: Json = {**settings, "seeded": False}  # as in the records of earlier versions
        self._begun = 0
        """The last step of which this process played episodes."""

    async def play(self, step: int, start: OrderPosition) -> Batch | None:
        """Return the batch of a step; None if the data is exhausted. Files of the step are used again if this run would
        have written them, and otherwise renamed. Raises what `next_batch` does.
        """
        files = StepFiles(self._paths.rollouts(step))
        if files.exist:
            try:
                record = files.record()
                if record is None:
                    raise OtherWeights("there is no record of its tasks")
                if problem := self._why_not(record, step, start):
                    raise OtherWeights(problem)
                return await self._play(files, step, start, record)
            except OtherWeights as error:
                self._set_aside(files, str(error))
            except (ChangedParameters, ChangedCode) as error:
                # The last line is advice for ng_collect_rollouts.
                self._set_aside(files, str(error).rpartition("\n")[0])
        draws, _ = self._order.take(start, self._config.groups_per_step)
        if not draws:
            return None
        rows = [draw.row for draw in draws]
        record = StepRecord(settings=self._settings, start=start.record(self._order.rows), rows=rows)
        return await self._play(files, step, start, record)

    def _why_not(self, record: StepRecord, step: int, start: OrderPosition) -> str:
        """Return why rollouts on disk are not those of this run; empty if they are."""
        draws, _ = self._order.take(start, len(record.rows))
        if record.settings != self._settings:
            changed = sorted(name for name in self._settings if record.settings.get(name) != self._settings[name])
            return f"it was played with other settings ({', '.join(changed)})"
        if [draw.row for draw in draws] != record.rows or record.start != start.record(self._order.rows):
            return "it has other tasks"
        if not record.complete and self._config.max_staleness and self._begun != step:
            return "it is incomplete, and the weights that began it no longer exist"
        return ""

    async def _play(self, files: StepFiles, step: int, start: OrderPosition, record: StepRecord) -> Batch:
        """Play the tasks of the record that have not been played, and with `resample` others for skipped groups."""
        config = self._config
        limit = config.groups_per_step * (1 + MAX_EXTRA if config.resample else 1)
        while True:
            draws, position = self._order.take(start, len(record.rows))
            found = await asyncio.to_thread(rows_at, self._data, {draw.row for draw in draws})
            rows = [found[draw.row] for draw in draws]
            tasks = StepTasks(self._data, draws, rows, first=record.played)
            await self._collect(files, step, tasks, record)
            keys = _group_keys([task_key(row.row) for row in rows])
            members = await asyncio.to_thread(read_members, files, keys, config.group_size, step, self._rules)
            if not record.complete:
                self._check(files, step, members)
            if record.played < len(draws):
                record = record.model_copy(update={"played": len(draws)})
                files.write(record)
            scale = config.loss.resolved.scale
            groups = groups_of(members.members, scale=scale, min_members=config.min_group_members)
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
        return Batch(step, tuple(groups), position.record(self._order.rows), failures=members.failures + stale)

    async def _collect(self, files: StepFiles, step: int, tasks: StepTasks, record: StepRecord) -> None:
        """Play what is missing; of a step that is complete, only check that the files are those of this collection."""
        if record.played < tasks.count:
            self._set_aside_later(step)
            files.write(record)
        config, rules, agents = self._config, self._rules, self._data.agents
        plan = CollectionPlan(
            files.paths.output,
            config.agent_name,
            config.group_size,
            params=config.responses_create_params,
            limits=CollectionLimits(
                config.num_samples_in_parallel, config.max_attempts, config.rollout_timeout_s, config.max_failure_rate
            ),
            is_final=lambda kind, server: rules.endings.is_final(kind, server, agents, rules.policy_servers),
        )
        try:
            async with OpenCollection.opened(plan, tasks, self._stack.clients) as opened:
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
        recorded = steps_in(self._paths.rollouts(step).parent, RECORD)
        # The last first: if this process ends in between, no step is missing before one that remains.
        for later in reversed([number for number in recorded if number > step]):
            self._set_aside(StepFiles(self._paths.rollouts(later)), reason)
        for number in steps_in(self._paths.evaluation(step).parent, ROLLOUTS):
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

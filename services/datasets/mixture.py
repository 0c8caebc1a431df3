"""`Rollout`: one episode to collect, with the body of its /run request; and where the rollouts come from.

`DatasetTasks` yields them from a file (`TaskFile`) or from several, in an order of seed and epoch (`Mixture`).
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast

import orjson

from rollyard.records.data_files import DataFile, DataFiles
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.rewards import RENAMED, SCORES, with_verdict
from rollyard.records.rollout_keys import task_key
from rollyard.records.rollout_types import AgentRef, RolloutRow
from rollyard.records.rows import agent_of, rows_again, rows_of, with_seed
from rollyard.records.types import Json
from rollyard.services.datasets.dataset import Dataset, DatasetSettings, MixtureSettings


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode to collect: the task, the number of the repeat, the agent and the row."""

    task_index: int
    rollout_index: int
    agent: str
    row: Json

    def body(self, params: Mapping[str, Any], *, seeded: bool) -> bytes:
        """Return the body of the `/run` request: the row, with `params` overriding its own create parameters.

        `seeded`: add the number of the repeat as the seed. Raises Failure bad_task if the row's metadata is invalid.
        """
        task = self.row.get("task_input") if is_materialized(self.row) else None
        merged = {**(self.row if task is None else task).get("responses_create_params", {}), **params}
        if seeded:
            try:
                merged["metadata"] = with_seed(merged.get("metadata"), self.rollout_index)
            except ValueError as error:
                raise Failure(FailureKind.BAD_TASK, str(error)) from error
        if task is not None:
            episode = {"rollout_id": f"{self.task_index}-{self.rollout_index}", "attempt": 0}
            given = {"task_id": self.row["task_id"], "task_input": {**task, "responses_create_params": merged}}
            return orjson.dumps({"episode_id": episode, "task": given})
        indices = {"_ng_task_index": self.task_index, "_ng_rollout_index": self.rollout_index}
        return orjson.dumps({**self.row, "responses_create_params": merged, "agent_ref": self.agent_ref, **indices})

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the `/run` request, which its answer must have as well."""
        return {}

    @property
    def task_key(self) -> str:
        return task_key(self.row)

    def result(self, answer: RolloutRow) -> RolloutRow:
        """Return the row to store, without the collector's keys, from the answer of `/run`."""
        if RENAMED not in answer and not SCORES.isdisjoint(self.row):  # of an agent of another framework
            return cast(RolloutRow, with_verdict(self.row, self.row, answer))
        return answer

    @property
    def agent_ref(self) -> AgentRef:
        """The row's agent_ref with the resolved agent name."""
        row_agent_ref: AgentRef | None = self.row.get("agent_ref")
        return {**row_agent_ref, "name": self.agent} if row_agent_ref else {"name": self.agent}


def is_materialized(row: Json) -> bool:
    """Return whether the row is {task_id: {...}, task_input: {...}}, a task for NeMo Gym 0.7's environment servers."""
    return isinstance(row.get("task_input"), dict) and isinstance(row.get("task_id"), dict)


class DatasetTasks(Protocol):
    """The tasks of a collection, from one file or from a mixture of several."""

    count: int
    """Number of tasks."""
    agents: set[str]
    """Names of the agents that play the tasks."""
    digest: str
    """A hash of the rows and their order."""
    files: set[Path]
    """The local files that contain the rows."""

    @property
    def identity(self) -> Json:
        """What a collection's manifest records about the tasks, for comparison when the collection is resumed."""
        ...

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of each task. Raises RollyardError if a row has changed since it was first read."""
        ...


class TaskFile:
    """An input file, read once to validate and identify it, then streamed. Only an 8-byte hash per row stays in memory.

    Its identity depends only on its rows: the same rows, compressed or in a different file, are the same input.
    """

    def __init__(self, file: DataFile, *, agent: str | None, limit: int | None) -> None:
        """Raises OperatorError if a row is invalid or has no agent, if there is none, or if the file is a pipe."""
        if isinstance(file, Path) and file.is_fifo():
            raise OperatorError(f"{file} is a pipe; rows are read twice, so the input must be a regular file")
        self.file = file
        self.files = {file} if isinstance(file, Path) else set()
        self._agent = agent
        self.limit = limit
        self._line_hashes = array("q")
        self.agents: set[str] = set()
        digest = hashlib.sha256()
        for row in islice(rows_of(file), limit):
            if row.problem:
                raise OperatorError(f"{file}: line {row.line}{row.problem}")
            digest.update(row.text + b"\n")
            self.agents.add(_agent_of_row(row.value, agent, file))
            self._line_hashes.append(row.line_hash)
        self.count = len(self._line_hashes)
        if self.count == 0:
            raise OperatorError(f"{file} has no rows")
        self.digest = digest.hexdigest()

    @property
    def identity(self) -> Json:
        return {"input_sha256": self.digest, "rows": self.count}

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of each task in file order. Raises RunError if a row changed since it was first read."""
        index = -1
        for index, row in enumerate(islice(rows_again(self.file, self._line_hashes), self.limit)):
            if index == self.count:
                raise RunError(
                    f"{self.file}: line {row.line} is new: the file grew while it was in use. To continue with the "
                    f"original rows, repeat the command with --limit {self.count}"
                )
            if row.problem:
                raise RunError(
                    f"{self.file}: line {row.line} changed while the file was in use. Restore it, then repeat the "
                    "command to continue"
                )
            agent = _agent_of_row(row.value, self._agent, self.file)
            for repeat in range(repeats):
                yield Rollout(index, repeat, agent, row.value)
        if index + 1 < self.count:
            raise RunError(
                f"{self.file} had {self.count} rows, and now ends after {index + 1}. Restore it, then repeat the "
                "command to continue"
            )


def _agent_of_row(row: Json, default: str | None, file: DataFile) -> str:
    """Return the agent of a valid row, or the default agent. Raises OperatorError if there is neither."""
    agent = agent_of(row) or default
    if agent is None:
        raise OperatorError(f"{file} has rows without agent_ref: set their agent with --agent-name ...")
    return agent


RowRef = tuple[Dataset, str]
"""A reference to a row: its dataset and its id."""
DRAWS = "one generator per data set"
"""How datasets are shuffled. A manifest without this key was written when all datasets shared a generator."""


class Mixture:
    """The tasks of several datasets (`DatasetTasks`). Every selected row appears exactly once per epoch."""

    def __init__(
        self, settings: MixtureSettings, files: DataFiles, *, agent: str | None = None, limit: int | None = None
    ) -> None:
        """Read every file once. Raises OperatorError if a dataset is invalid or a row has no agent."""
        self._settings = settings
        self._agent = agent
        self._limit = limit
        self.datasets = [Dataset(dataset_settings, files) for dataset_settings in settings.datasets]
        self.files = {dataset.source for dataset in self.datasets if isinstance(dataset.source, Path)}
        self._selected_ids = self._select_ids()
        self.count = 0
        self.agents: set[str] = set()
        digest = hashlib.sha256()
        for dataset in self.datasets:
            digest.update(dataset.digest.encode())
        for dataset, name in self.row_refs():
            digest.update(f"{dataset.name}\0{name}\n".encode())
            self.agents.add(self._agent_of_row(dataset, name))
            self.count += 1
        self.digest = digest.hexdigest()

    @property
    def identity(self) -> Json:
        """What the manifest records, with how datasets are shuffled: a collection shuffled otherwise cannot resume."""
        draw_rule = {"draws": DRAWS} if any(map(_is_shuffled, self._settings.datasets)) else {}
        return {"input_sha256": self.digest, "rows": self.count, **draw_rule}

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of each task, in the order of the epoch."""
        for index, (dataset, name) in enumerate(self.row_refs()):
            row, agent = dataset.row(name), self._agent_of_row(dataset, name)
            for repeat in range(repeats):
                yield Rollout(index, repeat, agent, row)

    def rows(self) -> Iterator[Json]:
        """Yield the rows in the order of the epoch, ready to be written as a dataset."""
        for dataset, name in self.row_refs():
            yield dataset.row(name)

    def row_refs(self) -> Iterator[RowRef]:
        return islice(self._order(), self._limit)

    @property
    def notes(self) -> list[str]:
        notes: list[str] = []
        for settings, dataset, ids in zip(self._settings.datasets, self.datasets, self._selected_ids, strict=True):
            prefix = f"dataset {dataset.name!r}:"
            if settings.count is not None and settings.count > len(ids):
                notes.append(
                    f"{prefix} count is {settings.count:,}, but there are only {len(ids):,} rows; all are used"
                )
            if dataset.repeated_in_order:
                notes.append(
                    f"{prefix} {dataset.repeated_in_order} lines in its order file repeat an id and are ignored"
                )
        return notes

    def _select_ids(self) -> list[list[str]]:
        """Return the first `count` ids of each dataset in the order of epoch 0. All epochs use the same ids."""
        selected: list[list[str]] = []
        for settings, dataset, shuffler in zip(
            self._settings.datasets, self.datasets, self._shufflers(epoch=0), strict=True
        ):
            ids = list(dataset.order or dataset.ids)
            if _is_shuffled(settings):
                shuffler.shuffle(ids)
            selected.append(ids[: settings.count])
        return selected

    def _shufflers(self, epoch: int) -> list[random.Random]:
        """Return a generator per dataset, seeded with its name (and a counter), so that others do not reorder it."""
        same_name = Counter[str]()
        shufflers: list[random.Random] = []
        for settings in self._settings.datasets:
            shufflers.append(random.Random(f"{self._settings.seed}/{epoch}/{same_name[settings.name]}/{settings.name}"))
            same_name[settings.name] += 1
        return shufflers

    def _order(self) -> Iterator[RowRef]:
        seed, epoch = self._settings.seed, self._settings.epoch
        rng = random.Random(f"{seed}/{epoch}")
        queues = [list(ids) for ids in self._selected_ids]
        if epoch:
            for settings, ids, shuffler in zip(self._settings.datasets, queues, self._shufflers(epoch), strict=True):
                if _is_shuffled(settings):
                    shuffler.shuffle(ids)
        if self._settings.mode == "sequential":
            for dataset, ids in zip(self.datasets, queues, strict=True):
                yield from ((dataset, name) for name in ids)
            return
        weights = [settings.weight for settings in self._settings.datasets]
        indices, taken = range(len(queues)), [0] * len(queues)
        while any(weights):
            (index,) = rng.choices(indices, weights)
            yield self.datasets[index], queues[index][taken[index]]
            taken[index] += 1
            if taken[index] == len(queues[index]):
                weights[index] = 0.0

    def _agent_of_row(self, dataset: Dataset, name: str) -> str:
        agent = dataset.agent(name) or self._agent
        if agent is None:
            raise OperatorError(
                f"dataset {dataset.name!r} has rows without agent_ref: set its agent_name, or pass --agent-name ... "
                "for all rows"
            )
        return agent


def _is_shuffled(settings: DatasetSettings) -> bool:
    return settings.order is None and settings.shuffle

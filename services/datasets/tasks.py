"""Rows in: a data set streamed as tasks, each repeated, none of it held in memory."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import orjson

from rollyard.services.datasets.data_files import DataFile
from rollyard.services.datasets.rows import agent_of, rows_again, rows_of, with_seed
from rollyard.services.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.services.rollout_types import AgentRef
from rollyard.services.types import Json


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode to collect: which task, which repeat, which agent, and the body of its `/run`."""

    task_index: int
    rollout_index: int
    agent: str
    row: Json

    def body(self, params: Mapping[str, Any], *, seeded: bool) -> bytes:
        """The row with the command's create parameters over its own; `seeded` adds the repeat's number as seed.

        Raises Failure bad_task.
        """
        merged = {**self.row.get("responses_create_params", {}), **params}
        if seeded:
            try:
                merged["metadata"] = with_seed(merged.get("metadata"), self.rollout_index)
            except ValueError as error:
                raise Failure(FailureKind.BAD_TASK, str(error)) from error
        marks = {"_ng_task_index": self.task_index, "_ng_rollout_index": self.rollout_index}
        return orjson.dumps({**self.row, "responses_create_params": merged, "agent_ref": self.agent_ref, **marks})

    @property
    def agent_ref(self) -> AgentRef:
        """The row's own, else the command's agent."""
        own: AgentRef | None = self.row.get("agent_ref")
        return {**own, "name": self.agent} if own else {"name": self.agent}


class Tasks(Protocol):
    """What a collection is made of: one file, or a mixture of several (services/datasets/)."""

    count: int
    """Tasks."""
    agents: set[str]
    """Who plays them."""
    digest: str
    """Changes with anything that a rollout could tell."""
    files: set[Path]
    """Where the rows are, as far as they are files of this machine."""

    @property
    def identity(self) -> Json:
        """What a collection's manifest records of the tasks, and compares when it goes on."""
        ...

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Every task's repeats. Raises RollyardError when a row is not the one that was read at the start."""
        ...


class TaskFile:
    """An input file, read once to check and identify it, then streamed. A hash of 8 bytes a row stays in memory.

    Its identity is of its rows: the same rows compressed or at another place are the same input.
    """

    def __init__(self, file: DataFile, *, agent: str | None, limit: int | None) -> None:
        """Raises OperatorError naming the first row that cannot be played."""
        if isinstance(file, Path) and file.is_fifo():
            raise OperatorError(f"{file} is a pipe; rows are read twice, so they must be in a file")
        self.file = file
        self.files = {file} if isinstance(file, Path) else set()
        self._agent = agent
        self._limit = limit
        self._marks = array("q")
        self.agents: set[str] = set()
        digest = hashlib.sha256()
        for row in islice(rows_of(file), limit):
            if row.problem:
                raise OperatorError(f"{file}: line {row.line}{row.problem}")
            digest.update(row.text + b"\n")
            self.agents.add(_agent_of_row(row.value, agent, file))
            self._marks.append(row.mark)
        self.count = len(self._marks)
        if self.count == 0:
            raise OperatorError(f"{file} holds no rows")
        self.digest = digest.hexdigest()

    @property
    def identity(self) -> Json:
        """See `Tasks`."""
        return {"input_sha256": self.digest, "rows": self.count}

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Every task's repeats, tasks in file order. Raises RunError at a row that changed since the first reading."""
        index = -1
        for index, row in enumerate(islice(rows_again(self.file, self._marks), self._limit)):
            if index == self.count:
                raise RunError(
                    f"{self.file}: line {row.line} is new: the file grew while it was in use. To go on with the rows "
                    f"as they were, repeat the command with +limit={self.count}"
                )
            if row.problem:
                raise RunError(
                    f"{self.file}: line {row.line} changed while the file was in use. Restore it, then the same "
                    "command goes on"
                )
            agent = _agent_of_row(row.value, self._agent, self.file)
            for repeat in range(repeats):
                yield Rollout(index, repeat, agent, row.value)
        if index + 1 < self.count:
            raise RunError(
                f"{self.file} held {self.count} rows, and now ends after {index + 1}. Restore it, then the same "
                "command goes on"
            )


def _agent_of_row(row: Json, default: str | None, file: DataFile) -> str:
    """Who plays a playable row. Raises OperatorError when nothing says."""
    agent = agent_of(row) or default
    if agent is None:
        raise OperatorError(f"{file} has rows without agent_ref: say who plays them with +agent_name=...")
    return agent

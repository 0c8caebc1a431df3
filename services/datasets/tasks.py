"""Streams the rows of a dataset as tasks, with repeats, without loading all of them into memory."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import orjson

from rollyard.records.data_files import DataFile
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.rollout_types import AgentRef
from rollyard.records.rows import agent_of, rows_again, rows_of, with_seed
from rollyard.records.types import Json


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
        merged = {**self.row.get("responses_create_params", {}), **params}
        if seeded:
            try:
                merged["metadata"] = with_seed(merged.get("metadata"), self.rollout_index)
            except ValueError as error:
                raise Failure(FailureKind.BAD_TASK, str(error)) from error
        indices = {"_ng_task_index": self.task_index, "_ng_rollout_index": self.rollout_index}
        return orjson.dumps({**self.row, "responses_create_params": merged, "agent_ref": self.agent_ref, **indices})

    @property
    def agent_ref(self) -> AgentRef:
        """The row's agent_ref with the resolved agent name."""
        row_agent_ref: AgentRef | None = self.row.get("agent_ref")
        return {**row_agent_ref, "name": self.agent} if row_agent_ref else {"name": self.agent}


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

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

from services.errors import Failure, FailureKind, OperatorError, RunError
from services.rows import Row, agent_of, rows_of, with_seed
from services.types import Json


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
        merged = {**self.row["responses_create_params"], **params}
        if seeded:
            try:
                merged["metadata"] = with_seed(merged.get("metadata"), self.rollout_index)
            except ValueError as error:
                raise Failure(FailureKind.BAD_TASK, str(error)) from error
        marks = {"_ng_task_index": self.task_index, "_ng_rollout_index": self.rollout_index}
        return orjson.dumps({**self.row, "responses_create_params": merged, "agent_ref": self.agent_ref, **marks})

    @property
    def agent_ref(self) -> Json:
        """The row's own, else the command's agent."""
        return {**(self.row.get("agent_ref") or {}), "name": self.agent}


class Tasks(Protocol):
    """What a collection is made of: one file, or a mixture of several (services/data/)."""

    count: int
    """Tasks."""
    agents: set[str]
    """Who plays them."""
    digest: str
    """Changes with anything that a rollout could tell."""
    files: set[Path]
    """Where the rows are."""

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Every task's repeats. Raises RollyardError when a row is not the one that was read at the start."""
        ...


class TaskFile:
    """An input file, read once to check and identify it, then streamed. A hash of 8 bytes a row stays in memory."""

    def __init__(self, path: Path, *, agent: str | None, limit: int | None) -> None:
        """Raises OperatorError naming the first row that cannot be played."""
        if path.is_fifo():
            raise OperatorError(f"{path} is a pipe; rows are read twice, so they must be in a file")
        self.path = path
        self.files = {path}
        self._agent = agent
        self._limit = limit
        self._marks = array("q")
        self.count = 0
        self.agents: set[str] = set()
        digest = hashlib.sha256()
        for row in self._rows():
            digest.update(orjson.dumps(row.value))
            digest.update(b"\n")
            self.agents.add(_player(row.value, agent, path))
            self._marks.append(row.mark)
            self.count += 1
        if self.count == 0:
            raise OperatorError(f"{path} holds no rows")
        self.digest = digest.hexdigest()

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Every task's repeats, tasks in file order. Raises RunError at a row that changed since the first reading."""
        index = -1
        for index, row in enumerate(islice(rows_of(self.path), self._limit)):
            if index == self.count:
                raise RunError(
                    f"{self.path}: line {row.line} is new: the file grew while it was in use. To go on with the rows "
                    f"as they were, repeat the command with +limit={self.count}"
                )
            if row.mark != self._marks[index]:
                raise RunError(
                    f"{self.path}: line {row.line} changed while the file was in use. Restore it, then the same "
                    "command goes on"
                )
            agent = _player(row.value, self._agent, self.path)
            for repeat in range(repeats):
                yield Rollout(index, repeat, agent, row.value)
        if index + 1 < self.count:
            raise RunError(
                f"{self.path} held {self.count} rows, and now ends after {index + 1}. Restore it, then the same "
                "command goes on"
            )

    def _rows(self) -> Iterator[Row]:
        for row in islice(rows_of(self.path), self._limit):
            if row.problem:
                raise OperatorError(f"{self.path}: line {row.line}{row.problem}")
            yield row


def _player(row: Json, default: str | None, path: Path) -> str:
    """Who plays a playable row. Raises OperatorError when nothing says."""
    agent = agent_of(row) or default
    if agent is None:
        raise OperatorError(f"{path} has rows without agent_ref: say who plays them with +agent_name=...")
    return agent

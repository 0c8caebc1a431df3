"""Rows in: a JSON Lines file streamed as tasks, each repeated, none of it held in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from services.errors import Failure, FailureKind, OperatorError
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

        The seed travels as NeMo Gym sends it: `metadata.extra_body` is a JSON string that model servers merge into the
        request to the engine, because the Responses API has no `seed` of its own. Raises Failure bad_task.
        """
        merged = {**self.row["responses_create_params"], **params}
        if seeded:
            try:
                merged["metadata"] = _seeded(merged.get("metadata"), self.rollout_index)
            except ValueError as error:
                raise Failure(FailureKind.BAD_TASK, str(error)) from error
        marks = {"_ng_task_index": self.task_index, "_ng_rollout_index": self.rollout_index}
        return orjson.dumps({**self.row, "responses_create_params": merged, "agent_ref": self.agent_ref, **marks})

    @property
    def agent_ref(self) -> Json:
        """The row's own, else the command's agent."""
        return {**(self.row.get("agent_ref") or {}), "name": self.agent}


def _seeded(metadata: Any, seed: int) -> Json:
    """`metadata` with the seed in its extra_body. Raises ValueError in words when there is no room for one."""
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata is a JSON {type(metadata).__name__}; expected an object")
    text = metadata.get("extra_body") or "{}"
    try:
        extra = orjson.loads(text) if isinstance(text, str) else None
    except orjson.JSONDecodeError:
        extra = None
    if not isinstance(extra, dict):
        raise ValueError(f"metadata.extra_body is {text!r}; expected a string that holds a JSON object")
    return {**metadata, "extra_body": orjson.dumps({**extra, "seed": seed}).decode()}


class TaskFile:
    """An input file, read once to check and identify it, then streamed."""

    def __init__(self, path: Path, *, agent: str | None, limit: int | None) -> None:
        self.path = path
        self._agent = agent
        self._limit = limit
        self.count = 0
        self.agents: set[str] = set()
        self.digest = self._survey()

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Every task's repeats, tasks in file order."""
        for index, (_, row) in enumerate(self._rows()):
            agent = self._agent_of(row)
            for repeat in range(repeats):
                yield Rollout(index, repeat, agent, row)

    def _survey(self) -> str:
        """Hash of the rows used; counts them and their agents. Raises OperatorError naming the first bad row."""
        digest = hashlib.sha256()
        for number, row in self._rows():
            digest.update(orjson.dumps(row))
            digest.update(b"\n")
            params = row.get("responses_create_params")
            if not isinstance(params, dict) or not isinstance(params.get("input"), str | list):
                found = ", ".join(sorted(row)) or "nothing"
                raise OperatorError(
                    f"{self.path}: line {number} has {found}; "
                    "expected responses_create_params with an `input`, a text or a list"
                )
            try:
                _seeded(params.get("metadata"), 0)
            except ValueError as error:
                raise OperatorError(f"{self.path}: line {number}: {error}") from error
            self.agents.add(self._agent_of(row))
            self.count += 1
        if self.count == 0:
            raise OperatorError(f"{self.path} holds no rows")
        return digest.hexdigest()

    def _rows(self) -> Iterator[tuple[int, Json]]:
        """Line number and row."""
        used = 0
        try:
            # Binary lines end at \n only: U+0085 and U+2028 inside a string are text.
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if self._limit is not None and used >= self._limit:
                        return
                    if line.strip():
                        yield number, self._parse(line, number)
                        used += 1
        except OSError as error:
            raise OperatorError(f"input file {str(self.path)!r} cannot be read: {error.strerror}") from error

    def _parse(self, line: bytes, number: int) -> Json:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise OperatorError(f"{self.path}: line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            found = type(row).__name__
            raise OperatorError(f"{self.path}: line {number} is a JSON {found}; expected an object")
        return row

    def _agent_of(self, row: Json) -> str:
        own = row.get("agent_ref") or {}
        if not isinstance(own, dict) or not isinstance(own.get("name", ""), str):
            raise OperatorError(f"{self.path} has a row with agent_ref {own!r}; expected {{name: ...}}")
        agent = own.get("name") or self._agent
        if agent is None:
            raise OperatorError(f"{self.path} has rows without agent_ref: say who plays them with +agent_name=...")
        return agent

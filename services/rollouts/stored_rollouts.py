"""The rollouts of a finished file as what a collection collects: `ng_regrade` asks for another verdict on each."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from rollyard.records.data_files import lines_of
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError
from rollyard.records.jsonl import BadLine, ParsedLine, hand_over, iter_jsonl, strict, with_offsets
from rollyard.records.manifest import PLANNED, ROLLOUTS, Manifest
from rollyard.records.rewards import OLD_VERDICT, task_of, verdict_of
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Key, Shard, duplicate_key, key_of, task_key
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rows import agent_of
from rollyard.records.run_types import Directory
from rollyard.records.types import Json, json_kind, whole_number
from rollyard.services.datasets.mixture import Rollout
from rollyard.services.rollouts.run_answer import REPLAY_HEADER

_HEADERS = {REPLAY_HEADER: "1"}


@dataclass(frozen=True, slots=True)
class StoredRollout(Rollout):
    """A finished rollout, whose row is the stored one. Its agent asks for a verdict, and does not call the model."""

    @property
    def headers(self) -> Mapping[str, str]:
        return _HEADERS

    @property
    def task_key(self) -> str:
        key = self.row.get("_ng_task_key")
        return key if isinstance(key, str) else task_key(task_of(self.row))

    def body(self, params: Mapping[str, Any], *, seeded: bool) -> bytes:
        """Raises Failure bad_task if the row has no response, or parameters that are not an object."""
        for name in ("response", "responses_create_params"):
            if not isinstance(found := self.row.get(name), dict):
                detail = f"the stored rollout's {name} is {json_kind(found)}; expected an object"
                raise Failure(FailureKind.BAD_TASK, detail, server=self.agent)
        return super(StoredRollout, self).body(params, seeded=seeded)

    def result(self, answer: RolloutRow) -> RolloutRow:
        return cast(RolloutRow, {**answer, OLD_VERDICT: verdict_of(self.row)})


class StoredRollouts:
    """The rollouts of a file as tasks (`DatasetTasks`). They keep their tasks and repeats.

    The file is read once to validate and identify it, then streamed. Only a hash and a key per row stay in memory.
    """

    def __init__(self, file: Path, *, agent: str | None = None) -> None:
        """`agent`: asks for the verdicts instead of the agents that the rows name.

        Raises OperatorError if a line is not a rollout, if a rollout is there twice, or if there is none.
        """
        self.file = file
        self.files = {file}
        self.agents: set[str] = set()
        self._agent = agent
        self._keys: dict[Key, int] = {}
        """Key -> line, in the order of the file."""
        self._line_hashes = array("q")
        self._by_position = False
        digest = hashlib.sha256()
        for line in iter_jsonl(with_offsets(lines_of(file)), hand_over, parse=strict):
            digest.update(line.line.rstrip() + b"\n")
            self._line_hashes.append(hash(line.line))
            self._add(line)
        if not self._keys:
            raise OperatorError(f"{file} has no rollouts")
        self.digest = digest.hexdigest()
        rows, repeats = _planned(file)
        self._planned = rows > 0
        self.count = max(rows, *(task + 1 for task, _ in self._keys))
        """Number of tasks, including those without a stored rollout."""
        self.repeats = max(repeats, *(repeat + 1 for _, repeat in self._keys))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def identity(self) -> Json:
        return {"input_sha256": self.digest, "rows": self.count, ROLLOUTS: len(self), PLANNED: self._planned}

    def rollouts_in(self, shard: Shard | None) -> int:
        """Return the number of rollouts in a shard; None: in the file."""
        return len(self) if shard is None else sum(key in shard for key in self._keys)

    def rollouts(self, repeats: int) -> Iterator[StoredRollout]:
        """Yield every rollout in file order. Raises RunError if a row has changed since it was first read."""
        lines = iter_jsonl(with_offsets(lines_of(self.file)), hand_over, parse=strict)
        for key, line_hash in zip(self._keys, self._line_hashes, strict=True):
            line = next(lines, None)
            if line is None or isinstance(line, BadLine) or hash(line.line) != line_hash:
                raise RunError(
                    f"{self.file} changed while it was in use (task {key[0]}, repeat {key[1]}). Restore it, then "
                    "repeat the command to continue"
                )
            yield StoredRollout(*key, self._agent or agent_of(line.value) or "", line.value)

    def _add(self, line: ParsedLine | BadLine) -> None:
        where = f"{self.file}: line {line.number}"
        if isinstance(line, BadLine):
            hint = "if its collection was killed, repeat that first" if line.torn else "restore or delete that line"
            raise OperatorError(f"{where}{line.problem}; {hint}")
        row = line.value
        if duplicated := duplicate_key(line.line):
            raise OperatorError(f"{where} has the key {duplicated} twice; delete one of the two")
        if "failure_kind" in row and not {"response", "reward"} & row.keys():
            raise OperatorError(
                f"{where} is a failed attempt (X_failures.jsonl); expected a rollout, which has a response"
            )
        try:
            agent = self._agent or agent_of(row)
            if not self._keys:
                self._by_position = "_ng_task_index" not in row
            key = (len(self._keys), 0) if self._by_position else key_of(row)
        except ValueError as error:
            raise OperatorError(f"{where} {error}") from error
        if agent is None:
            raise OperatorError(f"{where} has no agent_ref: name the agent of the verifier with --agent-name ...")
        if self._by_position and "_ng_task_index" in row:
            raise OperatorError(f"{where} has _ng_task_index, unlike line 1; expected it in all rows, or in none")
        if key in self._keys:
            raise OperatorError(
                f"{where} is task {key[0]}, repeat {key[1]} again, after line {self._keys[key]}; expected each rollout "
                "once (files of several jobs: ng_merge)"
            )
        self._keys[key] = line.number
        self.agents.add(agent)


def _planned(file: Path) -> tuple[int, int]:
    """Return the number of tasks and repeats that the file's collection planned; 0 and 0 if they are unknown."""
    try:
        identity = Manifest.model_validate_json(RolloutPaths(file).manifest.read_bytes()).identity
    except (OSError, ValidationError):
        return 0, 0
    rows, repeats = (whole_number(identity.get(name), least=1) for name in ("rows", "num_repeats"))
    return (rows, repeats) if rows and repeats and identity.get(PLANNED, True) else (0, 0)


def check_replay(agents: Iterable[str], directory: Directory) -> None:
    """Raise OperatorError for an agent of another framework, which would call its model instead."""
    for agent in sorted(agents):
        if any(url in directory.foreign for url in directory.servers.get(agent, ())):
            raise OperatorError(
                f"the agent {agent!r} is of another framework, and would play again instead of asking for a verdict: "
                "start its environment with an agent of Rollyard, and name that one with --agent-name"
            )

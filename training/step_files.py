"""StepFiles: the rollouts of a step on disk, a record of which tasks were played, and the group members in them."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from rollyard.records.activity import PARTIAL_MEMBER
from rollyard.records.errors import RunError
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import unused
from rollyard.records.rollout_file import RolloutPaths, Rollouts
from rollyard.records.rollout_keys import Key, key_of
from rollyard.records.types import Json, Record
from rollyard.training.groups import EndingRules, GroupMember, Treatment, member_of_failure, member_of_row
from rollyard.training.run_folder import updates_of
from rollyard.training.training_sequence import SequenceError, SequenceRules, TrainingSequence

RECORD, ROLLOUTS = "_tasks.json", ".jsonl"
"""Endings of the files of a step."""


class StepRecord(Record):
    """The contents of `step_000012_tasks.json`."""

    settings: Json
    """What determines the rollouts besides what the manifest contains. Only a run with the same uses them again."""
    start: dict[str, int]
    """Position in the data before the step."""
    rows: list[int]
    """The dataset row of each task."""
    played: int = 0
    """Number of tasks, from the first, whose rollouts have all ended."""
    complete: bool = False
    """Whether the step became a batch. Its failed rollouts are then not played again."""


def steps_in(folder: Path, ending: str) -> list[int]:
    """Return the numbers of the steps that have a file with this ending in a folder, sorted."""
    name = re.compile(rf"step_(\d{{6,}}){re.escape(ending)}")
    return sorted(int(found[1]) for path in folder.glob("step_*") if (found := name.fullmatch(path.name)))


class StepFiles:
    def __init__(self, output: Path) -> None:
        self.paths = RolloutPaths(output)
        self._record = self.paths.sidecar("tasks.json")

    def record(self) -> StepRecord | None:
        """Return the record, or None if there is none that can be read."""
        try:
            return StepRecord.model_validate_json(self._record.read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, record: StepRecord) -> None:
        """Replace the record. Raises RunError if it cannot be written."""
        self.paths.output.parent.mkdir(parents=True, exist_ok=True)
        replace(self._record, orjson.dumps(record.model_dump(), option=orjson.OPT_INDENT_2))

    def rows(self, path: Path) -> dict[Key, Json]:
        """Return the last row of each rollout in the file of rollouts or of failures. Raises RunError if a line is not
        a JSON object.
        """
        if not path.is_file():
            return {}
        # Nothing is trained on what had been said in a failed attempt, and it would take up memory.
        return {
            key_of(row): {name: value for name, value in row.items() if name != PARTIAL_MEMBER}
            for row in Rollouts(path)
        }

    def set_aside(self) -> list[Path]:
        """Rename all files, so that the step is played from the start. Return the new paths."""
        stamp, renamed = time.strftime("%Y%m%d-%H%M%S"), []
        # The record first: without it, a run that ends in between does not use the other files.
        for path in (self._record, *self.paths.sidecars(), self.paths.output):
            if os.path.lexists(path):
                aside = unused(path.with_name(f"{path.name}.{stamp}"))
                path.rename(aside)
                renamed.append(aside)
        return renamed

    @property
    def exist(self) -> bool:
        """Whether the step has rollouts or a record."""
        return self._record.exists() or self.paths.output.exists()


STALE = "stale"
"""Ending of a rollout that is left out because its weights are too old."""


class OtherWeights(RunError):
    """Rollouts were sampled with weights other than those that this step plays with."""


@dataclass(frozen=True, slots=True)
class MemberRules:
    sequences: SequenceRules
    endings: EndingRules
    policy_servers: frozenset[str]
    max_staleness: int


@dataclass(frozen=True, slots=True)
class StepMembers:
    """The members of a step's groups, by task and then by repeat."""

    members: tuple[GroupMember, ...]
    failures: Counter[str]
    """Number of permanently failed rollouts by failure kind."""
    retryable: frozenset[int]
    """Index of each task with a rollout that failed although another attempt might succeed."""
    last_failure: Json | None
    """The record of one of the failed attempts."""

    @property
    def stale(self) -> int:
        """Number of rollouts that are left out because their weights are too old."""
        return sum(member.ending == STALE for member in self.members)


def read_members(files: StepFiles, keys: Sequence[str], repeats: int, step: int, rules: MemberRules) -> StepMembers:
    """Return the members of a step whose rollouts have all ended; `keys`: the group of each task.

    Raises RunError if a rollout is missing or cannot be trained on, and OtherWeights.
    """
    rows, failed = files.rows(files.paths.output), files.rows(files.paths.failures)
    members, kinds, retryable, last = list[GroupMember](), Counter[str](), set[int](), None
    for index, group in enumerate(keys):
        for repeat in range(repeats):
            if (row := rows.get((index, repeat))) is not None:
                members.append(_measured(row, group, (index, repeat), step, rules, files))
                continue
            if (failure := failed.get((index, repeat))) is None:
                raise RunError(
                    f"{files.paths.output} lacks task {index}, repeat {repeat}, which it had: restore the file, or "
                    "move it away to play the step again"
                )
            kind, server = str(failure.get("failure_kind")), str(failure.get("server"))
            treatment = rules.endings.of_failure(kind, server, rules.policy_servers)
            members.append(member_of_failure(group, repeat, kind, treatment))
            kinds[kind] += 1
            last = failure
            if not failure.get("terminal"):
                retryable.add(index)
    return StepMembers(tuple(members), kinds, frozenset(retryable), last)


def _measured(row: Json, group: str, key: Key, step: int, rules: MemberRules, files: StepFiles) -> GroupMember:
    where = f"{files.paths.output}: task {key[0]}, repeat {key[1]}"
    try:
        member = member_of_row(row, group, rules.sequences, rules.endings)
        updates = sampled_updates(member.sequences)
    except (SequenceError, RunError) as error:
        raise RunError(f"{where}: {error}") from error
    if not updates:
        return member
    oldest, newest = min(updates), max(updates)
    if newest >= step:
        raise OtherWeights(
            f"{where} was sampled with weights after {newest} updates, but step {step} plays with those after "
            f"{step - 1}: another trainer uses the same engines, or the rollouts belong to another run"
        )
    if step - 1 - oldest > rules.max_staleness:
        return dataclasses.replace(member, ending=STALE, treatment=Treatment.LEFT_OUT, sequences=())
    return member


def sampled_updates(sequences: Iterable[TrainingSequence]) -> Counter[int]:
    """Count the tokens with a loss by the number of updates of the weights that sampled them.

    Raises RunError if the weights of a token are unknown.
    """
    versions = Counter(
        version
        for sequence in sequences
        for version, has_loss in zip(sequence.versions, sequence.loss_mask, strict=True)
        if has_loss
    )
    found = Counter[int]()
    for version, tokens in versions.items():
        found[updates_of(version)] += tokens
    return found

"""EarlierRows: the rollouts that an output contained before a round of several workers began."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rollyard.records.errors import FailureKind, RunError
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.rollout_keys import Expected, Key, KeySet
from rollyard.services.rollouts.appender import REPAIR_HINT
from rollyard.services.rollouts.shared.rollout_lines import failure_lines, rollout_lines


@dataclass
class EarlierRows:
    """The keys of the rows of an output and of its failures."""

    done: KeySet = field(default_factory=KeySet)
    permanently_failed: KeySet = field(default_factory=KeySet)
    """Rollouts whose rows the environment rejected."""
    attempts: dict[Key, int] = field(default_factory=dict)

    @classmethod
    def read(cls, output: Path, expected: Expected) -> EarlierRows:
        """Read the output, which may not exist, and its failures. Raises RunError if a row is invalid."""
        found = cls()
        for keyed in rollout_lines(output, expected):
            if not found.done.add(keyed.key):
                raise RunError(f"{output} repeats task {keyed.key[0]}, repeat {keyed.key[1]}. {REPAIR_HINT}")
        for keyed in failure_lines(RolloutPaths(output).failures, expected):
            if keyed.key in found.done:
                continue
            found.attempts[keyed.key] = found.attempts.get(keyed.key, 0) + 1
            if keyed.row.get("failure_kind") == FailureKind.BAD_TASK:
                found.permanently_failed.add(keyed.key)
        return found

    def can_go_on(self, expected: Expected) -> bool:
        """Return whether a rollout is missing that can be collected."""
        return len(self.done) + len(self.permanently_failed) < expected.count

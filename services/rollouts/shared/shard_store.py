"""ShardStore: the rollouts of one worker, and what it knows of the rollouts of others."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.records.errors import FailureKind
from rollyard.records.io.locked_files import open_unshared
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.manifest_records import Manifest
from rollyard.records.rollouts.rollout_keys import Key, KeySet
from rollyard.records.run_types import ServerCode
from rollyard.records.types import FailureRow, Json
from rollyard.services.rollouts.shared.earlier_rows import EarlierRows
from rollyard.services.rollouts.store import RolloutStore


class ShardStore(RolloutStore):
    """Writes a new shard. Its name is unique, so that it needs no lock."""

    def __init__(
        self,
        paths: RolloutPaths,
        manifest: Manifest,
        code: Mapping[str, ServerCode],
        before: EarlierRows,
        max_attempts: int,
    ) -> None:
        """`manifest`: the manifest of the shared collection, with this worker's code. `before`: the rows of the output
        before this round.
        """
        super().__init__(
            paths,
            manifest.identity,
            manifest.versions,
            resume=True,
            overwrite=False,
            code=code,
            origin=manifest,
            open_file=open_unshared,
        )
        self._max_attempts = max_attempts
        self._terminal = KeySet()
        self.done = before.done
        self.permanently_failed = before.permanently_failed
        self.attempts = before.attempts

    def append_failure(self, failure: FailureRow, partial: Json | None = None) -> None:
        super().append_failure(failure, partial)
        self._count(failure.task_index, failure.rollout_index, terminal=failure.terminal)

    def count_failure(self, row: Json) -> None:
        """Count a failed attempt of another worker in this round."""
        key = (row["_ng_task_index"], row["_ng_rollout_index"])
        self.attempts[key] = self.attempts.get(key, 0) + 1
        self._count(*key, terminal=bool(row.get("terminal")))
        if row.get("failure_kind") == FailureKind.BAD_TASK:
            self.permanently_failed.add(key)

    def is_settled(self, key: Key) -> bool:
        """Return whether the rollout is measured or has permanently failed in this round."""
        return (
            key in self.done
            or key in self._terminal
            or key in self.permanently_failed
            or self.attempts_used.get(key, 0) >= self._max_attempts
        )

    def _count(self, task: int, repeat: int, *, terminal: bool) -> None:
        self.attempts_used[task, repeat] = self.attempts_used.get((task, repeat), 0) + 1
        if terminal:
            self._terminal.add((task, repeat))

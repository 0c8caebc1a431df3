"""RolloutReader: the rollouts of a list one after another, read from the file when they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.analysis.browse.list.rollout_source import Listed, RolloutSource
from rollyard.analysis.viewer.api_records import Event, RolloutView
from rollyard.analysis.viewer.attempts import attempt_view
from rollyard.analysis.viewer.rollout_view import Replays, rollout_view


@dataclass(frozen=True)
class RolloutReader:
    """A list, and how boards are drawn."""

    source: RolloutSource
    listed: Listed
    replays: Replays

    def __len__(self) -> int:
        return len(self.listed)

    def view(self, at: int) -> RolloutView:
        """Return the rollout at a place in the list. Raises OSError if the file cannot be read, and RowChanged if it
        was changed.
        """
        return rollout_view(self.source.run, self.listed.table, int(self.listed.indexes[at]), self.replays)

    def until_failure(self, view: RolloutView) -> dict[int, list[Event]]:
        """Return what had been said in the failed attempts at a rollout, by their positions in `view.attempts`. Raises
        OSError if the file cannot be read.
        """
        line, found = view.line, {}
        for at, attempt in enumerate(view.attempts):
            if attempt.has_conversation:
                partial = attempt_view(self.source.run, line.task, line.repeat, at, lambda row: None)
                found[at] = partial.events if partial else []
        return found

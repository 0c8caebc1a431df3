"""RolloutReader: the rollouts of a list one after another, read from the file when they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.services.browse.list.rollout_source import Listed, RolloutSource
from rollyard.services.viewer.api.api_records import RolloutView
from rollyard.services.viewer.api.rollout_view import Replays, rollout_view


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
        return rollout_view(
            self.source.run, self.listed.table, int(self.listed.indexes[at]), self.replays, tokens=False
        )

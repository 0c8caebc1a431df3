"""Navigation: what a page may ask of the app that shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rollyard.analysis.browse.list.rollout_source import Listed, RolloutSource
from rollyard.analysis.browse.palette import Palette
from rollyard.analysis.findings.finding import Example, Finding
from rollyard.analysis.viewer.findings import FindingIndex
from rollyard.analysis.viewer.run_file import RunFile


class Navigation(Protocol):
    palette: Palette
    """The colours of the current theme."""
    findings: FindingIndex

    @property
    def follows_g(self) -> bool:
        """Whether the key before the current one was `g`."""

    def back(self) -> None:
        """Return to the page from which the current one was opened."""

    def position(self, run: RunFile) -> str:
        """Return which of several files this is."""

    def neighbour(self, run: RunFile, by: int) -> RunFile | None:
        """Return the previous or next file."""

    def open_rollout(
        self, source: RolloutSource, listed: Listed, at: int, find: str, moved: Callable[[int], None]
    ) -> None:
        """Show a rollout of a list. `moved` is called with the place of each rollout that is shown."""

    def open_finding(self, run: RunFile, finding: Finding) -> None:
        """List the rollouts of a finding."""

    async def open_example(self, run: RunFile, example: Example) -> None:
        """Show one rollout of a finding."""

"""The rows of a rollout file that meet an expression."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rollyard.analysis.metrics.loader.where import RowCondition
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.rollout_file import Rollouts


class SelectedRollouts(Rollouts):
    """Only the measured rollouts that meet an expression, such as `reward < 0.5 and tool_calls > 3`."""

    def __init__(self, path: Path, where: str) -> None:
        """Raises RunError if `path` is not a file, and OperatorError if `where` is not an expression."""
        super().__init__(path)
        self._where = where
        self._condition = RowCondition(where, path)

    def __repr__(self) -> str:
        return f"SelectedRollouts({str(self.path)!r}, {self._where!r})"

    def __iter__(self) -> Iterator[RolloutRow]:
        """Yield the rows that meet the expression.

        Raises RunError as `Rollouts` does, and OperatorError at the end if no row has one of the expression's fields.
        """
        return self._condition.among(self.with_offsets())

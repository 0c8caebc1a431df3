"""Shots: the worked examples before a problem, drawn as lm_eval draws them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random

from rollyard.resources_servers.math.prompt_formats import worked
from rollyard.services.types import Json


def subject_of(row: Json) -> str:
    """The part of MATH that a row is from."""
    return str(row.get("subject") or row.get("type") or "unknown")


class FixedShots:
    """The first rows, before every problem."""

    def __init__(self, form: str, rows: Iterable[Json], count: int) -> None:
        """Raises ValueError when there are not so many."""
        self._shots = [worked(form, row) for row in rows][:count]
        if len(self._shots) < count:
            raise ValueError(f"--shots {count} is more than the {len(self._shots)} rows to take them from")

    def before(self, subject: str) -> list[tuple[str, str]]:
        """The examples for the next row of `subject`."""
        return self._shots


class DrawnShots:
    """Rows of the problem's own subject, drawn anew for each problem.

    lm_eval scores each subject as a task of its own: it begins with the seed and draws once for every row, in order.
    """

    def __init__(self, form: str, rows: Iterable[Json], count: int, seed: int) -> None:
        """Raises ValueError for a row that is no solved problem."""
        self._count = count
        self._pools = defaultdict[str, list[tuple[str, str]]](list)
        for row in rows:
            self._pools[subject_of(row)].append(worked(form, row))
        self._draws = defaultdict[str, Random](lambda: Random(seed))

    def before(self, subject: str) -> list[tuple[str, str]]:
        """The examples for the next row of `subject`. Raises ValueError when there are not enough of it."""
        pool = self._pools[subject]
        if self._count > len(pool):
            raise ValueError(f"--shots {self._count} of {subject} are wanted, --shots-from has {len(pool)}")
        return self._draws[subject].sample(pool, self._count)

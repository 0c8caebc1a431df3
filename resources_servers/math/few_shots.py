"""Selects few-shot examples in the same way as lm-eval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from random import Random

from rollyard.records.types import Json
from rollyard.resources_servers.math.prompt_formats import worked


def subject_of(row: Json) -> str:
    """Return the row's subject, such as `Algebra`."""
    return str(row.get("subject") or row.get("type") or "unknown")


class FixedShots:
    """Uses the first rows as the examples for every problem."""

    def __init__(self, form: str, rows: Iterable[Json], count: int) -> None:
        """Raises ValueError if there are fewer than `count` rows, or if a row is not a solved problem."""
        self._shots = [worked(form, row) for row in rows][:count]
        if len(self._shots) < count:
            raise ValueError(f"--shots is {count}, but only {len(self._shots)} rows are available")

    def before(self, subject: str) -> list[tuple[str, str]]:
        """Return the examples, which do not depend on `subject`."""
        return self._shots


class SampledShots:
    """Samples the examples for each problem from the rows of its subject.

    lm-eval treats each subject as a separate task, for which it seeds a random generator once and then draws a sample
    per row, in order.
    """

    def __init__(self, form: str, rows: Iterable[Json], count: int, seed: int) -> None:
        """Raises ValueError if a row is not a solved problem."""
        self._count = count
        self._pools = defaultdict[str, list[tuple[str, str]]](list)
        for row in rows:
            self._pools[subject_of(row)].append(worked(form, row))
        self._rngs = defaultdict[str, Random](lambda: Random(seed))

    def before(self, subject: str) -> list[tuple[str, str]]:
        """Return the examples for the next row of `subject`. Raises ValueError if the subject has fewer than `count`
        rows.
        """
        pool = self._pools[subject]
        if self._count > len(pool):
            raise ValueError(f"--shots is {self._count}, but --shots-from has only {len(pool)} rows for {subject}")
        return self._rngs[subject].sample(pool, self._count)

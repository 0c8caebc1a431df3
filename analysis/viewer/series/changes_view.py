"""RunChanges: what was learned and forgotten between two runs of the viewer."""

from __future__ import annotations

from collections.abc import Callable

from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.paired.task_changes import TaskChanges
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.analysis.viewer.index.throttled_cache import ThrottledCache
from rollyard.analysis.viewer.series.series_records import Changes

_MAX_PAIRS = 16


class RunChanges:
    """Caches the changes of pairs of runs. Thread-safe."""

    def __init__(self, find: Callable[[int], RunFile]) -> None:
        """`find` returns the run with a number."""
        self._find = find
        self._pairs: dict[tuple[int, int], ThrottledCache[TaskChanges]] = {}

    def page(self, runs: tuple[int, int], listed: str, start: int, limit: int) -> Changes:
        """Return a page of the list `listed`."""
        files = self._find(runs[0]), self._find(runs[1])
        changes = self._of(runs, files)
        chosen = changes.listed(listed)
        sizes, unread = sum(one.file.size for one in files), sum(one.unread_bytes for one in files)
        return Changes(
            runs=runs,
            names=(displayable(files[0].name), displayable(files[1].name)),
            read=1.0 - unread / sizes if sizes else 1.0,
            why_not=changes.why_not,
            by=changes.by,
            metric=changes.metric,
            difference=changes.difference,
            only=changes.only,
            transitions=changes.transitions(),
            learned=len(changes.listed("learned")),
            forgotten=len(changes.listed("forgotten")),
            total=len(chosen),
            start=start,
            tasks=[changes.at(index) for index in chosen[start : start + limit].tolist()],
        )

    def _of(self, runs: tuple[int, int], files: tuple[RunFile, RunFile]) -> TaskChanges:
        (end_a, a), (end_b, b) = (one.numbers() for one in files)
        while len(self._pairs) >= _MAX_PAIRS and runs not in self._pairs:
            self._pairs.pop(next(iter(self._pairs)), None)
        cache = self._pairs.setdefault(runs, ThrottledCache())
        return cache.get((end_a, end_b, id(a), id(b)), lambda: TaskChanges.of(a, b))

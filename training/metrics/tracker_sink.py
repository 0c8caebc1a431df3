"""TrackerSink: metrics in Weights & Biases or MLflow."""

from __future__ import annotations

from collections.abc import Mapping

from rollyard.analysis.tracking.tracker import Tracker


class TrackerSink:
    """Logs to a tracker's run. Implements `MetricsSink`.

    After training resumed from a checkpoint, steps come again. MLflow keeps both values of such a step; Weights &
    Biases ignores steps before the last one that it has.
    """

    def __init__(self, tracker: Tracker, *, one_slash: bool = False) -> None:
        """`one_slash`: replace further slashes in names by dots, as in train/reward.format."""
        self._tracker = tracker
        self._one_slash = one_slash

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._one_slash:
            metrics = {_one_slash(name): value for name, value in metrics.items()}
        self._tracker.log(metrics, step)

    def close(self, *, failed: bool) -> None:
        self._tracker.close(failed=failed)


def _one_slash(name: str) -> str:
    first, slash, rest = name.partition("/")
    return f"{first}{slash}{rest.replace('/', '.')}"

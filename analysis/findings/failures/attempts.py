"""Detector: Attempts that timed out; A burst of failed attempts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollyard.analysis.findings.detector import AttemptSelection, Detector
from rollyard.analysis.findings.evidence import Evidence
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.metrics.loader.columns import Floats

_LEAST_SHARE = 0.01
_WINDOWS = 20
_LEAST = 5
_FACTOR = 4


class Timeouts(Detector):
    """Attempts that failed with a timeout, in an environment, a model server or a judge; reported from 1% of all
    attempts. They are never rewards, but hard tasks take longer, so that the measured rollouts are too easy a sample.
    """

    kind = "timeouts"
    title = "Attempts that timed out"
    category = Category.FAILURE

    def select(self, evidence: Evidence) -> Iterator[AttemptSelection]:
        failed = evidence.failed
        mask = np.array(["timeout" in kind or "timed_out" in kind for kind in failed.kind], bool)
        of = len(evidence) + len(failed.kind)
        if mask.sum() >= max(1, _LEAST_SHARE * of):
            servers = sorted({failed.server[index] for index in np.flatnonzero(mask).tolist()} - {""})
            named = f", on {', '.join(servers[:3])}" if servers else ""
            yield AttemptSelection(failed.task[mask], failed.repeat[mask], f"failed with a timeout{named}", of)


class ErrorBurst(Detector):
    """At least 5 failed attempts in a twentieth of the collection's time, more than 4 times as many as in an average
    twentieth. A burst points to an event, such as a restarted server or a full disk, rather than to the tasks.
    """

    kind = "error_burst"
    title = "A burst of failed attempts"
    category = Category.FAILURE

    def select(self, evidence: Evidence) -> Iterator[AttemptSelection]:
        failed = evidence.failed
        known = np.flatnonzero(~np.isnan(failed.time))
        window = _busiest(failed.time[known], evidence.signs.created)
        if window is None:
            return
        mask = known[window]
        of = len(evidence) + len(failed.kind)
        seconds = float(failed.time[mask].max() - failed.time[mask].min())
        within = f"within {seconds:,.0f} seconds" if seconds >= 1 else "within a second"
        yield AttemptSelection(failed.task[mask], failed.repeat[mask], f"failed {within} of each other", of)


def _busiest(times: Floats, created: Floats) -> np.ndarray | None:
    """Return a mask of the failures in the busiest window; None if it is not a burst."""
    every = np.concatenate([times, created[~np.isnan(created)]])
    if len(times) < _LEAST or not np.ptp(every):
        return None
    edges = np.linspace(every.min(), every.max(), _WINDOWS + 1)
    windows = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, _WINDOWS - 1)
    counts = np.bincount(windows, minlength=_WINDOWS)
    most = int(counts.argmax())
    if counts[most] < _LEAST or counts[most] <= _FACTOR * len(times) / _WINDOWS:
        return None
    return np.asarray(windows == most)

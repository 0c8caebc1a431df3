"""Builds the URLs that chart marks link to, in the same format as `link` in `static/route.js`."""

from __future__ import annotations

from urllib.parse import urlencode


class RunLinks:
    """Provides the URLs of one run's pages. Implements `rollyard.analysis.charts.links.Links`."""

    def __init__(self, run: int) -> None:
        self._run = f"#/runs/{run}"

    def rollouts(self, **filters: str | float) -> str:
        """Return the URL of the rollout list with these filters applied."""
        encoded = {name: value if isinstance(value, str) else f"{value:.12g}" for name, value in filters.items()}
        return f"{self._run}?{urlencode(encoded)}"

    def task(self, task: int) -> str:
        """Return the URL of a task's repeats."""
        return f"{self._run}/tasks/{task}"

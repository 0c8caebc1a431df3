"""Builds page addresses for the marks of charts, in the same format as `link` in `static/route.js`."""

from __future__ import annotations

from urllib.parse import urlencode


class RunLinks:
    """Addresses of one run (`rollyard.services.charts.links.Links`)."""

    def __init__(self, run: int) -> None:
        self._run = f"#/runs/{run}"

    def rollouts(self, **filters: str | float) -> str:
        """Return the address of the filtered list of rollouts."""
        encoded = {name: value if isinstance(value, str) else f"{value:.12g}" for name, value in filters.items()}
        return f"{self._run}?{urlencode(encoded)}"

    def task(self, task: int) -> str:
        """Return the address of a task's repeats."""
        return f"{self._run}/tasks/{task}"

"""ViewerLinks: where a viewer shows what a report counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True)
class ViewerLinks:
    """Addresses in a viewer that shows the files of a report. It is false without a viewer."""

    address: str = ""
    """Such as http://127.0.0.1:8080; empty: no links."""
    runs: tuple[int, ...] = ()
    """The number of each run in the viewer; empty: that in the report."""
    where: str = ""
    """The expression that the counted rollouts meet; empty: all are counted."""
    clusters_where: str = ""
    """Which rollouts count as failed for clusters; empty: those that did not solve their task."""

    def __bool__(self) -> bool:
        return bool(self.address)

    def rollout(self, run: int, task: int, repeat: int) -> str:
        """Return the address of a rollout; empty without a viewer."""
        return f"{self._run(run)}/tasks/{task}/{repeat}" if self else ""

    def findings(self, run: int) -> str:
        """Return the address of the findings of a run; empty if they are not those of the report."""
        return "" if self.where else f"{self._run(run)}/findings"

    def finding(self, run: int, kind: str, filters: Mapping[str, str]) -> str:
        """Return the address of all rollouts of a finding; empty if no page shows the same ones. `filters`: those of
        the list that select them, if there are any.
        """
        if not filters:
            return f"{self.findings(run)}/{kind}" if self.findings(run) else ""
        conditions = [text for text in (self.where, filters.get("where", "")) if text]
        both = " and ".join(f"({text})" for text in conditions) if len(conditions) > 1 else "".join(conditions)
        return f"{self._run(run)}?{urlencode({**filters, **({'where': both} if both else {})})}"

    def cluster(self, run: int, key: str) -> str:
        """Return the address of all rollouts of a cluster; empty if the viewer clusters others than the report."""
        rule = {"clusters_where": self.clusters_where} if self.clusters_where else {}
        return "" if self.where else f"{self._run(run)}?{urlencode({'cluster': key, **rule})}"

    def comparison(self, first: int, second: int) -> str:
        """Return the address of the comparison of two runs; empty if the viewer compares other rollouts."""
        return "" if self.where else f"{self._base}/#/compare/{self._number(first)}/{self._number(second)}"

    @property
    def _base(self) -> str:
        return self.address.rstrip("/")

    def _run(self, run: int) -> str:
        return f"{self._base}/#/runs/{self._number(run)}"

    def _number(self, run: int) -> int:
        return self.runs[run] if self.runs else run

"""States in a line what a list contains, and in another which query selects it."""

from __future__ import annotations

from rollyard.analysis.browse.list.rollout_source import Listed
from rollyard.analysis.charts.labels import pluralize
from rollyard.analysis.report.formatting import percent
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.analysis.viewer.run_file import RunFile

_FILTERS = {
    "success": "success",
    "outcome": "outcome",
    "end": "end",
    "agent": "agent",
    "task": "task",
    "repeat": "repeat",
    "min_reward": "reward from",
    "max_reward": "reward up to",
    "min_tool_calls": "calls from",
    "max_tool_calls": "calls up to",
}


def title_text(run: RunFile, listed: Listed | None, position: str, about: str = "") -> str:
    """Return the name of the file, the number of listed rollouts, and what has not been read yet."""
    status = run.status_record()
    available = status.measured + status.failed
    counted = "reading" if listed is None else _counted(len(listed), available)
    parts = [f"{status.name}{position}", *filter(None, [about]), counted]
    if listed is not None and listed.searched < 1:
        parts.append(f"so far; searched {percent(listed.searched, 0)}")
    if status.indexed < status.size - status.torn and status.size:
        parts.append(f"read {percent(status.indexed / status.size, 0)} of the file")
    elif status.status is not None and status.status.state == "running":
        parts.append("being collected")
    if status.error:
        parts.append(status.error)
    return "  ".join(parts)


def query_text(query: Query) -> str:
    """Return the conditions and the order of the list; empty if it shows everything by task."""
    parts = [
        f"{label} {_shown(value)}" for key, label in _FILTERS.items() if (value := getattr(query, key)) is not None
    ]
    if query.where:
        parts.append(f"where {query.where}")
    if query.q:
        parts.append(f"contains {query.q!r}")
    if query.sort != "task":
        parts.append(f"by {query.sort.removeprefix('-')}{' descending' if query.sort.startswith('-') else ''}")
    return "  ·  ".join(parts)


def _counted(listed: int, available: int) -> str:
    whole = pluralize(available, "rollout")
    return whole if listed == available else f"{listed:,} of {whole}"


def _shown(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else str(value)

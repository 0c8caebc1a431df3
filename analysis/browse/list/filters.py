"""The filters that need no expression: outcome, finish reason, agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.analysis.browse.parts.choice_screen import Choice
from rollyard.analysis.viewer.rollout_list import Query

_OUTCOMES: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("all", {}),
    "solved": ("solved", {"success": True}),
    "unsolved": ("not solved", {"success": False}),
    "measured": ("measured: with a reward", {"outcome": "measured"}),
    "failed": ("failed: without a reward", {"outcome": "failed"}),
}
_NOTHING: dict[str, Any] = {"success": None, "outcome": None, "end": None, "agent": None}


def choices_of(ends: Sequence[str], agents: Sequence[str]) -> list[Choice]:
    """Return the filters that a file offers."""
    return [
        *(Choice(value, label) for value, (label, _) in _OUTCOMES.items()),
        *(Choice(f"end {end}", f"end: {end}") for end in ends),
        *(Choice(f"agent {agent}", f"agent: {agent}") for agent in agents if len(agents) > 1),
    ]


def filter_changes(value: str) -> dict[str, Any]:
    """Return the changes of the query for a filter."""
    if value in _OUTCOMES:
        return {**_NOTHING, **_OUTCOMES[value][1]}
    key, _, name = value.partition(" ")
    return {**_NOTHING, key: name}


def chosen_filter(query: Query) -> str:
    """Return the filter of a query."""
    if query.end is not None:
        return f"end {query.end}"
    if query.agent is not None:
        return f"agent {query.agent}"
    kept = {key: value for key in ("success", "outcome") if (value := getattr(query, key)) is not None}
    return next((value for value, (_, changes) in _OUTCOMES.items() if changes == kept), "")

"""Adds an environment's prompts and tools to rows that do not have their own.

A row may be `{"question": "...", "answer": "..."}`. The responses of `/seed_session` and `/reset` then contain

    "additions": {"input": [...], "tools": [...]}

`input` is prepended to the row's own items, and `tools` are offered to the model. A key is absent if the row has its
own. Agents other than Rollyard's ignore `additions`, so rows for them must contain input and tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollyard.records.data_files import fill
from rollyard.records.types import Json
from rollyard.resources_servers.environment import BadTask

_SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class Additions:
    """The prompts and tools of one server's environment; None or empty if it has none."""

    system_prompt: str | None
    user_template: str | None
    tools: Sequence[Json]

    def for_row(self, row: Mapping[str, Any], *, with_tools: bool = True) -> Json:
        """Return the input and tools that the row lacks. Raises BadTask if it lacks a field of the user template."""
        given = row.get("responses_create_params")
        params: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        added: Json = {}
        if items := self._items(row, params):
            added["input"] = items
        if with_tools and self.tools and params.get("tools") is None:
            added["tools"] = self.tools
        return added

    def _items(self, row: Mapping[str, Any], params: Mapping[str, Any]) -> list[Json]:
        items: list[Json] = []
        if self.system_prompt and not _has_system_prompt(params):
            items.append({"role": "system", "content": self.system_prompt})
        if self.user_template and params.get("input") is None:
            try:
                text = fill(self.user_template, row)
            except ValueError as error:
                raise BadTask(f"the user template {error}") from error
            items.append({"role": "user", "content": text})
        return items


def _has_system_prompt(params: Mapping[str, Any]) -> bool:
    if params.get("instructions"):
        return True
    items = params.get("input")
    return isinstance(items, list) and any(isinstance(item, dict) and item.get("role") in _SYSTEM for item in items)

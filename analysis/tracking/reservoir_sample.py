"""Draws a uniform sample of a file's rollouts and converts them to readable text."""

from __future__ import annotations

import random
from typing import Any

import orjson

from rollyard.analysis.tracking.rollout_metrics import output_tokens, tool_calls
from rollyard.analysis.tracking.tracker import Cell
from rollyard.records.types import Json

COLUMNS = ("task", "repeat", "reward", "success", "end", "tool_calls", "output_tokens", "conversation")
MAX_LENGTH = 20_000
"""Maximum length of a conversation in characters."""


class RolloutSample:
    """Draws `size` rows from those offered (Vitter's algorithm R). The same file always gives the same sample."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen = 0
        self._kept: list[tuple[Cell, ...]] = []
        self._random = random.Random(0)

    def offer(self, row: Json) -> None:
        """Add the row to the sample or discard it."""
        self._seen += 1
        if len(self._kept) < self._size:
            self._kept.append(_cells(row))
        elif (index := self._random.randrange(self._seen)) < self._size:
            self._kept[index] = _cells(row)

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        """The sampled rows, sorted by task and repeat, with one cell per column."""
        return sorted(self._kept, key=lambda cells: (cells[0] is None, cells[0] or 0, cells[1] or 0))


def conversation(row: Json) -> str:
    """Return the episode's conversation as text: messages with their roles, calls with their arguments, and results."""
    params, response = row.get("responses_create_params"), row.get("response")
    start = params.get("input") if isinstance(params, dict) else None
    output = response.get("output") if isinstance(response, dict) else None
    items = [{"role": "user", "content": start}] if isinstance(start, str) else _list(start)
    text = "\n\n".join(filter(None, (_item_text(item) for item in [*items, *_list(output)])))
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}\n... ({len(text) - MAX_LENGTH} more characters)"


def _cells(row: Json) -> tuple[Cell, ...]:
    success, end = row.get("success"), row.get("finish_reason")
    return (
        _integer(row.get("_ng_task_index")),
        _integer(row.get("_ng_rollout_index")),
        float(row["reward"]),
        success if isinstance(success, bool) else None,
        end if isinstance(end, str) else None,
        tool_calls(row),
        _integer(output_tokens(row)),
        conversation(row),
    )


def _item_text(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    kind = item.get("type")
    if kind == "function_call":
        return f"call: {item.get('name')}({_text(item.get('arguments'))})"
    if kind == "function_call_output":
        return f"result: {_text(item.get('output'))}"
    if kind == "reasoning":
        return f"reasoning: {_text(item.get('content') or item.get('summary'))}"
    return f"{item.get('role', kind)}: {_text(item.get('content'))}"


def _text(content: Any) -> str:
    """Return the text of a message's content. Content of any other type is returned as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "\n".join(part["text"] for part in content)
    return orjson.dumps(content).decode()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

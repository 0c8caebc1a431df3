"""The messages of rows, for programs that show prompts or apply a chat template to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.json_values import items, mapping
from rollyard.records.rows import rows_of
from rollyard.records.types import Json

_ROLES = {"developer": "system"}


def messages_of(row: Json) -> list[Json]:
    """Return the row's messages with text only. Trainers show them, and some compute lengths from them."""
    given = mapping(row.get("responses_create_params")).get("input")
    found = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
    messages = [item for item in found if mapping(item).get("role")]
    return [
        {"role": _ROLES.get(item["role"], item["role"]), "content": text_of(item.get("content"))} for item in messages
    ] or [{"role": "user", "content": ""}]


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(str(mapping(part).get("text") or "") for part in items(content))


def valid_rows(path: Path) -> Iterator[Json]:
    """Yield the rows of a file. Raises OperatorError for an invalid row."""
    for found in rows_of(path):
        if found.problem:
            raise OperatorError(f"{path}: line {found.line}{found.problem}")
        yield found.value

"""Names a value inside a row: `reward`, `response.usage.output_tokens`, `row["my key"][0]`."""

from __future__ import annotations

import json
import keyword
import unicodedata
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldPath:
    """The keys and list indexes that lead from a row to a value."""

    parts: tuple[str | int, ...]
    raw: bool = False
    """Whether the path begins with `row`, and therefore never names a column that is computed from the row."""

    def __str__(self) -> str:
        first, *rest = self.parts
        named = not self.raw and isinstance(first, str) and _is_name(first)
        text = str(first) if named else f"row{_step(first)}"
        return text + "".join(map(_step, rest))

    @property
    def column(self) -> str | None:
        """The name of the computed column that the path may refer to; None if it can only refer to the row."""
        name = self.parts[0]
        return name if len(self.parts) == 1 and not self.raw and isinstance(name, str) else None

    def value(self, row: Any) -> Any:
        """Return the value in `row`; None if there is none."""
        found = row
        for part in self.parts:
            if isinstance(part, str):
                found = found.get(part) if isinstance(found, dict) else None
            else:
                found = found[part] if isinstance(found, list) and -len(found) <= part < len(found) else None
            if found is None:
                return None
        return found


def _is_name(text: str) -> bool:
    if not text.isidentifier() or keyword.iskeyword(text) or text in ("row", "true", "false", "null"):
        return False
    return unicodedata.normalize("NFKC", text) == text  # a parser reads names in this form


def _step(part: str | int) -> str:
    if isinstance(part, str) and _is_name(part):
        return f".{part}"
    return f"[{part}]" if isinstance(part, int) else f"[{quoted(part)}]"


def quoted(text: str) -> str:
    """Return the text as a string of an expression, with quotes, control characters and lone surrogates escaped."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)

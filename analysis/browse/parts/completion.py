"""Completes the name of a field at the end of an expression."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LAST_NAME = re.compile(r"[A-Za-z_][\w.]*$")


def completion(text: str, names: Sequence[str]) -> str | None:
    """Return the text with its last name completed to the first of `names` that begins with it; None if none does."""
    last = _LAST_NAME.search(text)
    if last is None or text[: last.start()].count('"') % 2:
        return None
    found = next((name for name in names if name.startswith(last[0]) and name != last[0]), None)
    return None if found is None else text[: last.start()] + found

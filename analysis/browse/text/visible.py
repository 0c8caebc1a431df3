"""Makes untrusted text safe and visible in a terminal. All text from rollouts passes through here before its layout."""

from __future__ import annotations

import re
from typing import Any

import orjson

from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.io.terminal import plain

TAB_WIDTH = 4
_INVISIBLE = re.compile(
    "[\u00ad\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0080-\U000e0fff]"
)
"""Characters without a glyph that `plain` leaves, because they are harmless in other output. Joiners stay: scripts and
emoji need them."""


def visible(text: str) -> str:
    """Return the text with control characters and invisible ones as codes, and with tabs as spaces."""
    shown = plain(text.replace("\r\n", "\n"))
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", shown).expandtabs(TAB_WIDTH)


def visible_line(text: str) -> str:
    """Like `visible`, on one line: line breaks become a sign."""
    return visible(text).replace("\n", "⏎")


def value_text(value: Any) -> str:
    """Return a short text for a value of a row, on one line. It has the form that the web viewer shows."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and value and all(isinstance(one, bool) for one in value):
        return f"{sum(value)} of {len(value)}"
    return visible_line(
        value if isinstance(value, str) else orjson.dumps(sanitize(value), option=orjson.OPT_NON_STR_KEYS).decode()
    )

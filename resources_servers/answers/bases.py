"""Parses numbers with an explicit base: `52_8`, `(52)_{\\text{eight}}`, `52 \\text{ base } 8`."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import without_spaces

_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
}  # fmt: skip
_BASED = re.compile(
    r"(-?)\(?(-?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)\)?(?:_\{?(?:\\text\{)?(?:base)?(\w+)\}*|\\text\{\(?(?:in)?base(\w+)\)?\}|\\text\{\(?(?:in)?base\}(\d+))"
)
_UPRIGHT = re.compile(r"\\text\{([0-9A-Fa-f]+)\}(?=_)")
_REMARK = re.compile(r"(_\{?(\d+)\}?)\\text\{\(?base\2\)?\}$")


def based(text: str) -> tuple[str, int] | None:
    """Return the digits and the base, or None if `text` is not a number with an explicit base."""
    text = without_spaces(text)
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1]
    match = _BASED.fullmatch(_UPRIGHT.sub(r"\1", _REMARK.sub(r"\1", text)))
    if match is None:
        return None
    name = (match[3] or match[4] or match[5]).lower()
    base = int(name) if name.isdecimal() else _BASES.get(name)
    return (match[1] + match[2].upper(), base) if base else None


def in_base_ten(text: str) -> str:
    """Convert a number with an explicit base to decimal. Return any other text unchanged."""
    number = based(text)
    try:
        return str(int(*number)) if number and 2 <= number[1] <= 36 else text
    except ValueError:  # a digit that is invalid in the base, or a radix point
        return text

"""Processes the text of Hydra overrides: finds quotes and brackets, and formats values so that Hydra can parse them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

_CLOSING = {"[": "]", "{": "}"}
_PIECES = re.compile(
    r"""(?P<quoted>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<filled>\$\{[^}]*\})"""  # an interpolation's braces are not a mapping
    r"""|(?P<mark>[\[\]{},])"""
    r"""|(?P<text>(?:\\.|\$(?!\{)|[^\[\]{},"'\\$])+|.)""",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"(?:--|[+~]{0,2})[A-Za-z_$][\w.\-/@$]*=")
_PLAIN = re.compile(r"[A-Za-z_/.][\w/\-.+$%*@?|]*(?: [\w/\-.+$%*@?|]+)*", re.ASCII)


def join_split_values(arguments: Iterable[str]) -> list[str]:
    """Rejoin bracketed values that the shell split at their spaces."""
    joined: list[str] = []
    waiting = list(arguments)
    while waiting:
        text = waiting.pop(0)
        if _ASSIGNED.match(text):
            for number in range(1, len(waiting) + 1):
                if not open_bracket(text) or _ASSIGNED.match(waiting[number - 1]):
                    break
                longer = " ".join([text, *waiting[:number]])
                if not open_bracket(longer):
                    text, waiting = longer, waiting[number:]
                    break
        joined.append(text)
    return joined


def open_bracket(text: str) -> str:
    """Return an unmatched bracket in an argument's value; empty if all brackets match."""
    stack: list[str] = []
    for kind, piece in pieces(text.partition("=")[2]):
        if kind == "mark" and piece in _CLOSING:
            stack.append(piece)
        elif kind == "mark" and piece in _CLOSING.values() and (not stack or _CLOSING[stack.pop()] != piece):
            return piece
    return stack[-1] if stack else ""


def pieces(value: str) -> Iterator[tuple[str, str]]:
    """Split a value into pieces; yield the kind (quoted, filled, mark or text) and the text of each."""
    for found in _PIECES.finditer(value):
        yield str(found.lastgroup), found.group()


def normalize(text: str) -> str:
    """Rewrite common notations that Hydra's grammar does not support: `~/x`, `[a,]`, non-ASCII letters."""
    key, equals, value = text.partition("=")
    if not equals or (value.isascii() and "~" not in value and not re.search(r",\s*[\]}]", value)):
        return text
    found = list(pieces(value))
    done: list[str] = []
    for number, (kind, piece) in enumerate(found):
        following = next((later for _, later in found[number + 1 :] if later.strip()), "")
        if kind == "mark" and piece == "," and following in ("]", "}") and done and done[-1] not in ("[", "{", ","):
            continue
        done.append(_normalize_text(piece) if kind == "text" else piece)
    return f"{key}={''.join(done)}"


def _normalize_text(piece: str) -> str:
    before, rest = re.fullmatch(r"((?:[^:]*:\s+|[A-Za-z_]\w*:(?!/))?\s*)(.*)", piece, re.DOTALL).groups()  # type: ignore[union-attr]
    if re.match(r"~(/|$)", rest):
        rest = str(Path.home()) + rest[1:]
    if not rest.isascii() and rest.isprintable() and not re.search("[\u2018-\u201f\u00a0]", rest):  # typographic quotes
        stripped = rest.rstrip()
        rest = quote(stripped) + rest[len(stripped) :]
    return f"{before}{rest}"


def format_value(value: Any, *, bare: bool = True) -> str:
    """Format `value` in Hydra's grammar. `bare`: strings without special characters are not quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(format_value(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int | float):
        return str(value)
    reserved = str(value).lower() in ("null", "true", "false", "nan", "inf")
    return str(value) if bare and _PLAIN.fullmatch(str(value)) and not reserved else quote(str(value))


def quote(text: str) -> str:
    return QuotedString(text, Quote.double).with_quotes()

"""Builds SVG as strings. `Svg` is safe markup and plain `str` is not; `escaped` turns untrusted text into markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import NewType

Svg = NewType("Svg", str)
Value = str | float | None


def escaped(text: str) -> Svg:
    """Escape text for use in markup. Invisible and bidirectional characters are replaced with their code points."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else _code(letter) for letter in text)
    return Svg(escape(text))


def tag(name: str, attributes: Mapping[str, Value], *children: Svg) -> Svg:
    """Build an element. Attributes whose value is None are omitted."""
    encoded = "".join(f' {key}="{_attribute_value(value)}"' for key, value in attributes.items() if value is not None)
    return Svg(f"<{name}{encoded}>{''.join(children)}</{name}>" if children else f"<{name}{encoded}/>")


def text(content: str, x: Value, y: float, kind: str | None = None, **attributes: Value) -> Svg:
    return tag("text", {"class": kind, "x": x, "y": y, **attributes}, escaped(content))


def percent(part: float) -> str:
    """Format a horizontal position as a percentage: 0 is the left edge, 1 the right edge."""
    return f"{round(100 * part, 3):g}%"


def mark(tip: str, shapes: Iterable[Svg], href: str | None = None, *, tab_stop: bool = True) -> Svg:
    """Group shapes and add a tooltip and an optional link. `tab_stop` makes the link reachable with the Tab key."""
    inner = (tag("title", {}, escaped(tip)), *shapes)
    if href is None:
        return tag("g", {"class": "mark"}, *inner)
    return tag("a", {"class": "mark", "href": href, "aria-label": tip, "tabindex": None if tab_stop else "-1"}, *inner)


def drawing(label: str, height: float, shapes: Iterable[Svg], kind: str, *, linked: bool = False) -> Svg:
    """Build the root element of a chart. `linked` must be set if the chart contains links, which the ARIA role `img`
    would hide from screen readers.
    """
    role = "group" if linked else "img"
    size: dict[str, Value] = {"width": "100%", "height": height}
    return tag("svg", {"class": f"chart {kind}", **size, "role": role, "aria-label": label}, *shapes)


def cut(content: str, letters: int) -> str:
    """Truncate text to at most `letters` characters, including an ellipsis."""
    return content if len(content) <= letters else f"{content[: letters - 1]}…"


def _attribute_value(value: str | float) -> str:
    return escaped(value) if isinstance(value, str) else f"{round(value, 2):g}"


def _code(letter: str) -> str:
    point = ord(letter)
    return f"\\u{{{point:x}}}" if point > 0xFFFF else f"\\u{point:04x}"

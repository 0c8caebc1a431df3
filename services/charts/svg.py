"""SVG as text. `Svg` is markup and plain `str` is not: text out of rollouts becomes markup through `words` alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import NewType

Svg = NewType("Svg", str)
Value = str | float | None


def words(text: str) -> Svg:
    """Text as markup. Characters that cannot be seen, or that reorder the text around them, become their codes."""
    if not text.isprintable():
        text = "".join(each if each.isprintable() else _code(each) for each in text)
    return Svg(escape(text))


def tag(name: str, attributes: Mapping[str, Value], *children: Svg) -> Svg:
    """An element; attributes that are None are left out."""
    written = "".join(f' {key}="{_written(value)}"' for key, value in attributes.items() if value is not None)
    return Svg(f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>")


def text(content: str, x: Value, y: float, kind: str | None = None, **more: Value) -> Svg:
    """A line of text."""
    return tag("text", {"class": kind, "x": x, "y": y, **more}, words(content))


def percent(part: float) -> str:
    """A horizontal position: 0 is the left edge, 1 the right one."""
    return f"{round(100 * part, 3):g}%"


def mark(tip: str, shapes: Iterable[Svg], href: str | None = None, *, tab_stop: bool = True) -> Svg:
    """Shapes with a tooltip, and a link where there is one. `tab_stop`: the keyboard can reach the link."""
    inner = (tag("title", {}, words(tip)), *shapes)
    if href is None:
        return tag("g", {"class": "mark"}, *inner)
    return tag("a", {"class": "mark", "href": href, "aria-label": tip, "tabindex": None if tab_stop else "-1"}, *inner)


def drawing(label: str, height: float, shapes: Iterable[Svg], kind: str, *, linked: bool = False) -> Svg:
    """The whole chart. `linked`: it holds links, which an image (role img) would hide from a screen reader."""
    role = "group" if linked else "img"
    size: dict[str, Value] = {"width": "100%", "height": height}
    return tag("svg", {"class": f"chart {kind}", **size, "role": role, "aria-label": label}, *shapes)


def cut(content: str, letters: int) -> str:
    """At most so many letters."""
    return content if len(content) <= letters else f"{content[: letters - 1]}…"


def _written(value: str | float) -> str:
    return words(value) if isinstance(value, str) else f"{round(value, 2):g}"


def _code(letter: str) -> str:
    point = ord(letter)
    return f"\\u{{{point:x}}}" if point > 0xFFFF else f"\\u{point:04x}"

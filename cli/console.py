"""Creates Rich consoles that escape control characters in all text (`records/terminal.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rollyard.records.terminal import plain, unwrapped


def is_terminal(stream: TextIO) -> bool:
    return unwrapped(stream).isatty()


def console(stream: TextIO, **options: Any) -> Console:
    """Return a console that writes to `stream` (`sys.stdout` or `sys.stderr`)."""
    return _PlainConsole(file=unwrapped(stream), **options)


class _PlainConsole(Console):
    """A console that escapes control characters in text, but not Rich's own styles and cursor movements."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Escape the text before it is laid out, because escaping changes the length of lines."""
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)

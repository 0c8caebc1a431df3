"""Console: rich's tables, bars and colours, with every piece of text cleaned (`services/io/terminal.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rollyard.services.io.terminal import plain, unwrapped


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`, one of `sys.stdout` and `sys.stderr`."""
    return unwrapped(stream).isatty()


def console(stream: TextIO, **options: Any) -> Console:
    """A console on `stream`, one of `sys.stdout` and `sys.stderr`."""
    return _PlainConsole(file=unwrapped(stream), **options)


class _PlainConsole(Console):
    """Cleans text where it is laid out. Styles and cursor movements of rich's own are no text."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Before it is laid out, so that lines break where they should."""
        return super().render_str(plain(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)

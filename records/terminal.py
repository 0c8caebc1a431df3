"""Escapes control characters, so that text from endpoints, rows and other users' files cannot control a terminal.

`plain_output` makes `print`, logging and tracebacks safe by wrapping both streams. Tables, bars and colours go through
`cli/console.py`, which escapes the text but keeps its own styles.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1 with its one-character escape sequences
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and characters that reorder the surrounding text
    "\ufff9-\ufffb\ud800-\udfff]"  # annotations, which hide text, and surrogates, which no stream can encode
    "|[\U000e0000-\U000e007f]"  # invisible copies of ASCII
)


def plain(text: str) -> str:
    """Escape characters that control a terminal, as JSON does: `\\u001b`. Escaped JSON text keeps its meaning."""
    return _CONTROL.sub(_escape, text)


def plain_line(text: str) -> str:
    """Like `plain`, but on one line, for names and values within a message."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """Escape everything that is written to the standard streams."""
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _PlainStream(unwrapped(stream))) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed_streams() -> None:
    """Open standard streams that are closed, for example by `>&-`.

    Otherwise, the next file that is opened would get the descriptor of the closed stream.
    """
    if sys.stdout is not None and sys.stderr is not None:
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def unwrapped(stream: TextIO) -> TextIO:
    """Return the stream that `plain_output` wraps, for output that needs its own escape sequences."""
    return stream.inner if isinstance(stream, _PlainStream) else stream


class _PlainStream:
    """Escapes text and forwards it. Reports that it is not a terminal, so that libraries do not use colours."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def write(self, text: str) -> int:
        self.inner.write(plain(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return False


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def duration(seconds: float) -> str:
    """Format a duration as `4.2 s`, `47 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def pluralize(number: int, noun: str) -> str:
    """Format a count with its noun: `1 rollout`, `3,200 rollouts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""Exceptions across the wire: a name and a text there, an ordinary exception of Python's own here."""

from __future__ import annotations

import builtins

_NEVER_REVIVED = (AssertionError, StopIteration, StopAsyncIteration)
"""Assertions are for the tests to raise; the others would end a test's own `map(f, cases)` before its cases do."""


class ForeignException(Exception):
    """The other side raised something that is no ordinary exception of Python's own, or none that it may raise here."""


def describe_exception(error: BaseException) -> list[str]:
    """Name and text."""
    try:
        return [type(error).__name__, str(error)[:2000]]
    except Exception:
        return [type(error).__name__, "(its text cannot be made)"]


def to_exception(name: str, text: str) -> Exception:
    """What the other side has told of."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _NEVER_REVIVED):
        try:
            return known(text)
        except TypeError:  # UnicodeDecodeError and the like want more than a text
            pass
    return ForeignException(f"{name}: {text}")

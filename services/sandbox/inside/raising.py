"""Exceptions across the wire: a name and a text there, an ordinary exception of Python's own here."""

from __future__ import annotations

import builtins


class Foreign(Exception):
    """The other side raised something that is no ordinary exception of Python's own, or an assertion of its own."""


def told(error: BaseException) -> list[str]:
    """Name and text."""
    try:
        return [type(error).__name__, str(error)[:2000]]
    except Exception:
        return [type(error).__name__, "(its text cannot be made)"]


def revived(name: str, text: str) -> Exception:
    """What the other side has told of. Never an AssertionError: that is for the tests to raise."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and known is not AssertionError:
        try:
            return known(text)
        except TypeError:  # UnicodeDecodeError and the like want more than a text
            pass
    return Foreign(f"{name}: {text}")

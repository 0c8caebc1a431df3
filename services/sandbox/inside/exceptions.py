"""Transfers exceptions between processes by name and message, and rebuilds built-in exceptions."""

from __future__ import annotations

import builtins

_NEVER_RAISED = (AssertionError, StopIteration, StopAsyncIteration)
"""Only tests may raise AssertionError. The other two would end a test's own `map(f, cases)` early."""


class ForeignException(Exception):
    """Represents an exception from the other process that is not built in or must not be raised in this process."""


def describe_exception(error: BaseException) -> list[str]:
    """Return the exception's name and message."""
    try:
        return [type(error).__name__, str(error)[:2000]]
    except Exception:
        return [type(error).__name__, "(str() failed)"]


def to_exception(name: str, text: str) -> Exception:
    """Rebuild the exception that the other process described."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _NEVER_RAISED):
        try:
            return known(text)
        except TypeError:  # e.g. UnicodeDecodeError takes more arguments
            pass
    return ForeignException(f"{name}: {text}")

"""What decides whether a fault was borne: nothing lost, nothing twice, nothing invented, and the command says so."""

from __future__ import annotations


class Broken(AssertionError):
    """The fault broke through."""


class NotInjected(Exception):
    """The fault did not take effect, so that nothing was tried: never counted as held."""


def hold(true: bool, what: str) -> None:
    """Raise Broken, saying what was found, unless `true`."""
    if not true:
        raise Broken(what)


def injected(true: bool, what: str) -> None:
    """Raise NotInjected, saying what is missing, unless `true`."""
    if not true:
        raise NotInjected(what)

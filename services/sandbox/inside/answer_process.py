"""The answer's process: runs the untrusted code and does what the tests ask of it.

Nothing here is protected from the answer. It holds no test, no expected value and no secret; whatever it sends is data.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from rollyard.services.sandbox.inside.channel import Channel
from rollyard.services.sandbox.inside.exceptions import describe_exception, to_exception
from rollyard.services.sandbox.inside.program_runner import run
from rollyard.services.sandbox.inside.value_codec import decode, encode

MODULE = "answer"
"""The answer's `__name__`: what stands under `if __name__ == "__main__":` is not run."""


class AnswerProcess:
    """The answer's names, and the objects that the tests know by number."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._module = types.ModuleType(MODULE)
        # As in a program that is run, not imported: the module itself, with what `site`, which is not loaded, adds.
        self._module.__dict__["__builtins__"] = builtins
        vars(builtins).update(exit=sys.exit, quit=sys.exit)
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}
        sys.modules[MODULE] = self._module

    def serve(self) -> None:
        """Answer requests until the tests hang up (raises Closed)."""
        while True:
            self._answer(*self._channel.receive())

    def _answer(self, verb: str, number: int, *arguments: Any) -> None:
        try:
            reply = self._done(verb, number, arguments)
        except BaseException as error:  # SystemExit too is for the tests to hear of
            reply = ["raised", *describe_exception(error)]
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self._channel.send(reply)

    def _done(self, verb: str, number: int, arguments: tuple[Any, ...]) -> list[Any]:
        if verb == "run":
            code, wanted = arguments
            return ["value", run(code, wanted, self._module.__dict__)]
        if verb == "name":
            return self._named(arguments[0])
        given = [decode(argument, self._found) for argument in arguments]
        value = _USES[verb](self._kept[number], *given)
        return ["value", encode(value, self._keep)]

    def _named(self, name: str) -> list[Any]:
        if name not in self._module.__dict__:
            raise NameError(f"the answer defines no {name!r}")
        value = self._module.__dict__[name]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        return ["value", encode(value, self._keep)]

    def _keep(self, value: Any) -> int:
        if isinstance(value, _TestFunction):
            return value.number
        if (number := self._numbers.get(id(value))) is None:  # what is kept lives on, and so its id is its own
            number = self._numbers[id(value)] = len(self._kept)
            self._kept.append(value)
        return number

    def _found(self, number: int) -> Any:
        return self._kept[number] if number >= 0 else _TestFunction(number, self._call_back)

    def _call_back(self, number: int, *given: Any) -> Any:
        self._channel.send(["lent", number, *[encode(part, self._keep) for part in given]])
        while True:
            kind, *rest = self._channel.receive()
            if kind == "value":
                return decode(rest[0], self._found)
            if kind == "raised":
                raise to_exception(*rest)
            self._answer(kind, *rest)  # the tests' function uses what it was given


class _TestFunction:
    """A function of the tests."""

    def __init__(self, number: int, call: Callable[..., Any]) -> None:
        self.number = number
        self._call = call

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Have the tests call it. Raises what it raises there."""
        return self._call(self.number, list(arguments), named)


def _call(target: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    return target(*arguments, **named)


_USES: dict[str, Callable[..., Any]] = {
    "call": _call,
    "read": getattr,
    "set": setattr,
    "item": operator.getitem,
    "parts": iter,
    "length": len,
    "truth": bool,
    "text": str,
}

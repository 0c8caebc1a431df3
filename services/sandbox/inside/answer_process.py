"""The answer's process: runs the untrusted code and executes requests from the tests.

Untrusted code can read and change everything in this process. The process contains no test, expected value or secret,
and everything it sends is treated as data.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

from rollyard.services.sandbox.inside.channel import Channel
from rollyard.services.sandbox.inside.value_codec import decode, describe_exception, encode, to_exception

_FILE = "<answer>"
_FUTURE_ANNOTATIONS = __future__.annotations.compiler_flag


MODULE = "answer"
"""The answer's `__name__`. Code under `if __name__ == "__main__":` is therefore not run."""


class AnswerProcess:
    """Holds the answer's module, and the objects that the tests refer to by number."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._module = types.ModuleType(MODULE)
        # As in a main program, `__builtins__` is the module itself. `site` would add `exit` and `quit`.
        self._module.__dict__["__builtins__"] = builtins
        vars(builtins).update(exit=sys.exit, quit=sys.exit)
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        sys.modules[MODULE] = self._module

    def serve(self) -> None:
        """Execute the tests' requests. Raises ChannelClosed when the tests disconnect."""
        while True:
            self._answer(*self._channel.receive())

    def _answer(self, verb: str, number: int, *arguments: Any) -> None:
        try:
            reply = self._execute(verb, number, arguments)
        except BaseException as error:  # including SystemExit, which is reported to the tests
            reply = ["raised", *describe_exception(error)]
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self._channel.send(reply)

    def _execute(self, verb: str, number: int, arguments: tuple[Any, ...]) -> list[Any]:
        if verb == "run":
            code, required_names = arguments
            return ["value", run(code, required_names, self._module.__dict__)]
        if verb == "name":
            return self._look_up(arguments[0])
        given = [decode(argument, self._find) for argument in arguments]
        value = _OPERATIONS[verb](self._objects[number], *given)
        return ["value", encode(value, self._keep)]

    def _look_up(self, name: str) -> list[Any]:
        if name not in self._module.__dict__:
            raise NameError(f"the answer does not define {name!r}")
        value = self._module.__dict__[name]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        return ["value", encode(value, self._keep)]

    def _keep(self, value: Any) -> int:
        if isinstance(value, _TestFunction):
            return value.number
        if (number := self._numbers.get(id(value))) is None:  # kept objects stay alive, so ids are unique
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number

    def _find(self, number: int) -> Any:
        return self._objects[number] if number >= 0 else _TestFunction(number, self._call_back)

    def _call_back(self, number: int, *given: Any) -> Any:
        self._channel.send(["lent", number, *[encode(part, self._keep) for part in given]])
        while True:
            kind, *rest = self._channel.receive()
            if kind == "value":
                return decode(rest[0], self._find)
            if kind == "raised":
                raise to_exception(*rest)
            self._answer(kind, *rest)  # a request from the tests' function, which uses one of its arguments


class _TestFunction:
    """A function from the tests that the answer can call."""

    def __init__(self, number: int, call: Callable[..., Any]) -> None:
        self.number = number
        self._call = call

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function in the tests' process. Re-raises its exceptions."""
        return self._call(self.number, list(arguments), named)


def _call(target: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
    return target(*arguments, **named)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": _call,
    "read": getattr,
    "set": setattr,
    "item": operator.getitem,
    "parts": iter,
    "length": len,
    "truth": bool,
    "text": str,
}


def run(code: str, required_names: list[str] | None, namespace: dict[str, Any]) -> str | None:
    """Execute `code` with the globals `namespace`. Return the error of the first skipped statement, or None.

    With `required_names`, top-level statements that raise are skipped if the program defines those names: the
    statements may be demonstrations that need input, or wrong tests. Otherwise, the program's exceptions propagate.
    """
    # dont_inherit: this file's `from __future__ import annotations` would hide a missing `import typing`.
    program = compile(code, _FILE, "exec", dont_inherit=True)
    if required_names is None:
        exec(program, namespace)
        return None
    first_error: BaseException | None = None
    for statement in ast.parse(code).body:
        part = compile(
            ast.Module([statement], []), _FILE, "exec", program.co_flags & _FUTURE_ANNOTATIONS, dont_inherit=True
        )
        try:
            exec(part, namespace)
        except BaseException as error:  # including SystemExit of a demonstration
            first_error = first_error or error
    if first_error is not None and not all(name in namespace for name in required_names):
        raise first_error
    return None if first_error is None else ": ".join(describe_exception(first_error))

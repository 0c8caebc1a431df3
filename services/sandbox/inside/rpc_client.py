"""RPC client in the tests' process: represents objects of the answer's process.

Results are plain data, so the tests' process itself evaluates equality, truth and all operators. Data is copied, so an
answer cannot modify a test's objects. Functions passed to the answer are called in the tests' process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from rollyard.services.sandbox.inside.channel import Channel, ChannelClosed
from rollyard.services.sandbox.inside.value_codec import decode, describe_exception, encode, to_exception


class AnswerProcessExited(BaseException):
    """Raised when the answer's process exits or sends an invalid message. `except Exception` does not catch it."""


class AnswerClient:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._remote_objects: dict[int, RemoteObject] = {}
        self._test_functions: list[Callable[..., Any]] = []
        self._exit_reason = ""

    def run(self, code: str, required_names: list[str] | None = None) -> str:
        """Execute the answer's code. Return the error of the first skipped statement, or "".

        Raises the answer's error or AnswerProcessExited.
        """
        return str(self._request("run", 0, code, required_names) or "")

    def name(self, name: str) -> Any:
        """Return the answer's global variable `name`. Raises NameError or AnswerProcessExited."""
        return self._request("name", 0, name)

    def request(self, verb: str, number: int, *arguments: Any) -> Any:
        """Apply the operation `verb` to the answer's object `number`. Raises its error or AnswerProcessExited."""
        return self._request(verb, number, *[encode(argument, self._number) for argument in arguments])

    def check_alive(self) -> None:
        """Raise AnswerProcessExited if the process has exited, even if a test has already caught that exception."""
        self.run("")

    def _request(self, *request: Any) -> Any:
        if self._exit_reason:
            raise AnswerProcessExited(self._exit_reason)
        try:
            self._channel.send(list(request))
            kind, *rest = self._channel.receive()
            while kind == "lent":
                self._channel.send(self._called_back(*rest))
                kind, *rest = self._channel.receive()
            if kind == "value":
                return decode(rest[0], self._remote)
            if kind == "module" and rest[0] in sys.stdlib_module_names:
                return importlib.import_module(rest[0])
            name, text = map(str, rest)
        except (ChannelClosed, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            self._exit_reason = str(error) or type(error).__name__
            raise AnswerProcessExited(self._exit_reason) from error
        raise to_exception(name, text)

    def _remote(self, number: int) -> Any:
        return (
            self._remote_objects.setdefault(number, RemoteObject(self, int(number)))
            if number >= 0
            else self._test_functions[~number]
        )

    def _number(self, value: Any) -> int:
        """Return the number that refers to `value`: from 0 up for the answer's objects, from -1 down for functions."""
        if isinstance(value, RemoteObject):
            number: int = object.__getattribute__(value, "_number")
            return number
        if not callable(value):
            kind = type(value).__name__
            raise TypeError(f"tests can pass only data and functions to an answer, but this is a {kind}")
        self._test_functions.append(value)
        return ~(len(self._test_functions) - 1)

    def _called_back(self, number: int, arguments: Any, named: Any) -> list[Any]:
        function = self._test_functions[~number]
        given, more = decode(arguments, self._remote), decode(named, self._remote)
        try:
            return ["value", encode(function(*given, **more), self._number)]
        except Exception as error:
            return ["raised", *describe_exception(error)]


class RemoteObject:
    """Represents an object whose class the answer defines. Operations on it return data. It is equal only to itself."""

    __slots__ = ("_answer", "_number")

    def __init__(self, answer: AnswerClient, number: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the object in the answer's process. Raises its error or AnswerProcessExited."""
        return self._answer.request("call", self._number, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{name} of an answer's object is not accessible")
        return self._answer.request("read", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.request("set", self._number, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._answer.request("item", self._number, key)

    def __iter__(self) -> Any:
        return self._answer.request("parts", self._number)

    def __len__(self) -> int:
        return int(self._answer.request("length", self._number))

    def __bool__(self) -> bool:
        return self._answer.request("truth", self._number) is True

    def __str__(self) -> str:
        return str(self._answer.request("text", self._number))

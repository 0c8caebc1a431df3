"""The tests' side of the wire between tests and answer: names of the answer, as objects that can be called.

Only data comes back. Equality, truth and every operator of the tests are the tests' own Python. Data is copied on its
way: an answer cannot change what a test holds. Functions of the tests can be handed over; they are called over here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from rollyard.services.sandbox.inside.channel import Channel, ChannelClosed
from rollyard.services.sandbox.inside.exceptions import describe_exception, to_exception
from rollyard.services.sandbox.inside.value_codec import decode, encode


class AnswerProcessExited(BaseException):
    """The answer's process has ended, or speaks nonsense. No exception that a test expects of an answer."""


class AnswerClient:
    """The answer's process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._known: dict[int, RemoteObject] = {}
        self._lent: list[Callable[..., Any]] = []
        self._gone = ""

    def run(self, code: str, wanted: list[str] | None = None) -> str:
        """Execute the answer; returns what was skipped because of `wanted`. Raises its error or AnswerProcessExited."""
        return str(self._ask("run", 0, code, wanted) or "")

    def name(self, name: str) -> Any:
        """What the answer calls `name`. Raises NameError, AnswerProcessExited."""
        return self._ask("name", 0, name)

    def ask(self, verb: str, number: int, *arguments: Any) -> Any:
        """Do something with the answer's object of that number. Raises what it raised, AnswerProcessExited."""
        return self._ask(verb, number, *[encode(argument, self._number) for argument in arguments])

    def check_alive(self) -> None:
        """Raises AnswerProcessExited, also when a test has swallowed that before."""
        self.run("")

    def _ask(self, *request: Any) -> Any:
        if self._gone:
            raise AnswerProcessExited(self._gone)
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
            self._gone = str(error) or type(error).__name__
            raise AnswerProcessExited(self._gone) from error
        raise to_exception(name, text)

    def _remote(self, number: int) -> Any:
        return self._known.setdefault(number, RemoteObject(self, int(number))) if number >= 0 else self._lent[~number]

    def _number(self, value: Any) -> int:
        """The answer's own objects have numbers from 0 up, what it is lent from -1 down."""
        if isinstance(value, RemoteObject):
            number: int = object.__getattribute__(value, "_number")
            return number
        if not callable(value):
            raise TypeError(f"tests can hand data and functions to an answer, not a {type(value).__name__}")
        self._lent.append(value)
        return ~(len(self._lent) - 1)

    def _called_back(self, number: int, arguments: Any, named: Any) -> list[Any]:
        function = self._lent[~number]
        given, more = decode(arguments, self._remote), decode(named, self._remote)
        try:
            return ["value", encode(function(*given, **more), self._number)]
        except Exception as error:
            return ["raised", *describe_exception(error)]


class RemoteObject:
    """An object of the answer's own class: what can be asked of it comes as data. It equals nothing but itself."""

    __slots__ = ("_answer", "_number")

    def __init__(self, answer: AnswerClient, number: int) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it over there. Raises what it raises, AnswerProcessExited."""
        return self._answer.ask("call", self._number, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"an object of the answer has no {name} here")
        return self._answer.ask("read", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.ask("set", self._number, name, value)

    def __getitem__(self, place: Any) -> Any:
        return self._answer.ask("item", self._number, place)

    def __iter__(self) -> Any:
        return self._answer.ask("parts", self._number)

    def __len__(self) -> int:
        return int(self._answer.ask("length", self._number))

    def __bool__(self) -> bool:
        return self._answer.ask("truth", self._number) is True

    def __str__(self) -> str:
        return str(self._answer.ask("text", self._number))

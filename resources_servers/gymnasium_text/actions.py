"""Reads the model's action: a name, a number, or JSON, depending on the environment's action space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

NAMES: Mapping[str, Sequence[str]] = {
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "nothing", "right"),
    "Acrobot": ("negative", "nothing", "positive"),
}
"""Names of the discrete actions of Gymnasium's own environments, in the order of their numbers."""
_TAG = re.compile(r"<action>((?:(?!</?action>).)*)</action>", re.IGNORECASE | re.DOTALL)


class InvalidAction(ValueError):
    """The text is not an action. The message tells the model what is expected."""


class Actions:
    def __init__(self, space: Any, names: Sequence[str]) -> None:
        self._space = space
        is_discrete = type(space).__name__ == "Discrete"  # MultiDiscrete has a `start` as well, which is an array
        self._start = int(space.start) if is_discrete else 0
        self._count = int(space.n) if is_discrete else None
        self._is_text = type(space).__name__ == "Text"
        self._names = {name.lower(): self._start + number for number, name in enumerate(names)}

    @property
    def expected(self) -> str:
        if self._count is not None:
            last = self._start + self._count - 1
            numbers = f"a number from {self._start} to {last}"
            return f"one of {', '.join(self._names)}, or {numbers}" if self._names else numbers
        return "a text" if self._is_text else f"JSON in the action space {self._space}"

    def parse(self, text: str) -> Any:
        """Return the action. Raises InvalidAction, with a message for the model."""
        if self._is_text:
            if not self._space.contains(text):
                raise InvalidAction(f"{_shown(text)} is not in the action space {self._space}.")
            return text
        stripped = text.strip()
        if self._count is not None:
            number = self._names.get(stripped.lower())
            if number is None and re.fullmatch(r"-?\d{1,9}", stripped):
                number = int(stripped)
            if number is None or not self._space.contains(number):
                raise InvalidAction(f"{_shown(text)} is not an action. Expected {self.expected}.")
            return number
        try:
            action = from_json(self._space, orjson.loads(stripped))
            valid = self._space.contains(action)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise InvalidAction(f"{_shown(text)} is not an action. Expected {self.expected}.") from error
        if not valid:
            raise InvalidAction(f"{_shown(text)} is outside the action space {self._space}.")
        return action


def from_json(space: Any, value: Any) -> Any:
    """Return a JSON value as an element of the space, which the caller must check with `contains`.

    `from_jsonable` of Dict and Tuple takes the values of each part together, and the spaces of whole numbers cut off
    decimals. Raises ValueError, TypeError, KeyError, IndexError or AttributeError if the value has another form.
    """
    kind = type(space).__name__
    if kind == "Dict":
        if value.keys() != space.spaces.keys():
            raise ValueError(f"expected the keys {', '.join(map(str, space.spaces))}")
        return {key: from_json(part, value[key]) for key, part in space.spaces.items()}
    if kind == "Tuple":
        return tuple(from_json(part, one) for part, one in zip(space.spaces, value, strict=True))
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
        _check_whole(value)
    return space.from_jsonable([value])[0]


def _check_whole(value: Any) -> None:
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, list):
            _check_whole(each)
        elif not isinstance(each, int) or isinstance(each, bool):
            raise ValueError(f"{each!r} is not a whole number")


def names_of(env_id: str, given: Sequence[str]) -> Sequence[str]:
    """Return the names of the actions: those of the settings, else those of Gymnasium's own environments."""
    name = env_id.rpartition(":")[2].rpartition("/")[2]
    return given or next((names for known, names in NAMES.items() if name.startswith(known)), ())


def action_in(message: str) -> str:
    """Return the last `<action>...</action>` of a message, or the complete message if it has none."""
    found: list[str] = _TAG.findall(message)
    return found[-1] if found else message


def _shown(text: str) -> str:
    return f"{text[:100]!r}..." if len(text) > 100 else repr(text)

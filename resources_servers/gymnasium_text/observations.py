"""Shows an observation as text: the text itself, the environment's own drawing, a sentence, or JSON."""

from __future__ import annotations

import re
from typing import Any

import orjson

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_HIGHLIGHTED = re.compile(r"\x1b\[4[0-9]m(.)\x1b\[0m")
_CARDS = {1: "ace"}
_STANDS = "RGYB"


def observation_text(env: Any, observation: Any) -> str:
    """Return what the model reads. Environments with the render mode `ansi` are drawn.

    A drawing shows the position by a colour, which text does not have: it becomes brackets, as in `[S]FFF`.
    """
    if isinstance(observation, str):
        return observation
    name = env.spec.id if env.spec is not None else ""
    if name.startswith("Blackjack"):
        return _blackjack(observation)
    drawn = env.render() if env.render_mode == "ansi" else None
    if not isinstance(drawn, str):
        return as_json(observation)
    if name.startswith("Taxi"):
        return f"{_COLOURS.sub('', drawn).strip()}\n{_taxi(env.unwrapped, observation)}"
    return _COLOURS.sub("", _HIGHLIGHTED.sub(r"[\1]", drawn)).strip("\n")


def as_json(value: Any) -> str:
    """Return an observation as JSON, with arrays as lists."""
    return orjson.dumps(_plain(value), option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _taxi(env: Any, observation: Any) -> str:
    """Say what Taxi's drawing shows only by colours."""
    row, column, passenger, destination = (int(part) for part in env.decode(int(observation)))
    waiting = f"waits at {_STANDS[passenger]}" if passenger < len(_STANDS) else "is in the taxi"
    where = f"The taxi is in row {row}, column {column}, counted from 0 at the top left"
    return f"{where}. The passenger {waiting}. The destination is {_STANDS[destination]}."


def _blackjack(observation: Any) -> str:
    hand, card, ace = (int(part) for part in observation)
    return f"Your hand is worth {hand}{' with a usable ace' if ace else ''}. The dealer shows {_CARDS.get(card, card)}."

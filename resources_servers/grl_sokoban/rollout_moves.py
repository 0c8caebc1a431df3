"""Extracts the moves and boards of a Sokoban episode from a rollout row, which is untrusted input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.io.json_values import items, mapping, number
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban.app import read_move
from rollyard.resources_servers.grl_sokoban.game import Room, parse_action
from rollyard.resources_servers.grl_sokoban.observation import board_in

UNDO = 0
"""A pseudo-move that undoes the last move that moved the player."""
_SYMBOLS = frozenset("#_OX√PS")
_LARGEST = 50
_MAX_TEXT_LENGTH = 200_000
_MAX_TURNS = 2000
MAX_MAGNITUDE = 1e9
"""Rewards with a larger absolute value are not shown."""
_ACTION = re.compile(r"<action>.*?</action>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Turn:
    """The moves in one tool call or message, and the environment's response."""

    moves: tuple[int, ...] = ()
    board: str | None = None
    reward: float | None = None
    total: float | None = None
    event: int | None = None
    """Index of the tool call within the episode."""


def turns_of(row: Json) -> list[Turn]:
    """Return the turns in order. If the prompt shows the start, the first turn contains that board and no moves."""
    found: list[Turn] = []
    params = mapping(row.get("responses_create_params"))
    # The start is the last board in the prompt; earlier boards belong to examples.
    shown = [board for item in items(params.get("input")) for board in boards_in(_text_of(mapping(item)))]
    shown = shown or list(boards_in(params["input"] if isinstance(params.get("input"), str) else ""))
    if shown:
        found.append(Turn(board=shown[-1]))
    before = sum(map(_is_call, items(params.get("input"))))
    for turn in _played(items(mapping(row.get("response")).get("output")), before):
        if len(found) < _MAX_TURNS:
            found.append(turn)
    return found


def boards_in(text: str) -> Iterator[str]:
    """Yield the boards in a text, in the format of `Room.board`, with or without spaces between the symbols.

    If there is none, yield the board that the text describes by coordinates.
    """
    if "#" not in text:
        board = board_in(text[:_MAX_TEXT_LENGTH])
        if board is not None and _is_room(board):
            yield board
        return
    block: list[str] = []
    for line in [*text[:_MAX_TEXT_LENGTH].split("\n"), ""]:
        cells = line.replace(" ", "").strip()
        if 3 <= len(cells) <= _LARGEST and _SYMBOLS.issuperset(cells):
            block.append(cells)
            continue
        if 3 <= len(block) <= _LARGEST and _is_room("\n".join(block)):
            yield "\n".join(block)
        block = []


def _is_room(board: str) -> bool:
    try:
        Room.parse(board)
    except ValueError:
        return False
    return True


def _is_call(item: Any) -> bool:
    return str(mapping(item).get("type")).endswith("_call")


def _played(output: list[Any], before: int) -> Iterator[Turn]:
    """Yield the turns in an episode's output. `before` is the number of tool calls in the prompt."""
    calls = before
    pending: dict[str, tuple[int, tuple[int, ...]]] = {}
    message = ""
    for item in map(mapping, output):
        kind = str(item.get("type") or "message")
        if _is_call(item):
            pending[str(item.get("call_id"))] = calls, _moves(item)
            calls += 1
        elif kind.endswith("_call_output"):
            event, moves = pending.pop(str(item.get("call_id")), (None, ()))
            yield _answered(item, event, moves)
        elif kind == "message" and item.get("role") == "assistant":
            message = _text_of(item)
        elif kind == "message" and item.get("role") == "user":
            board = next(boards_in(_text_of(item)), None)
            move = read_move(message) if message else None
            if board is not None or move is not None:
                yield Turn(() if move is None else (move,), board)
            message = ""
    # The environment may not respond to the last move.
    if (tag := _ACTION.search(message)) and calls == before and (move := read_move(tag.group())) is not None:
        yield Turn((move,))


def _moves(call: Json) -> tuple[int, ...]:
    """Return the moves in a `step` or `undo` call; none if one is invalid, as the environment then executes none."""
    try:
        arguments = call.get("arguments")
        values = mapping(orjson.loads(arguments or "{}") if isinstance(arguments, str) else arguments)
        if call.get("name") == "undo":
            return (UNDO,) * max(0, min(int(values.get("moves", 1)), _MAX_TURNS))
        actions = values.get("actions", values.get("action", []))
        return tuple(map(parse_action, actions if isinstance(actions, list) else [actions]))[:_MAX_TURNS]
    except (ValueError, TypeError, OverflowError):
        return ()


def _answered(item: Json, event: int | None, moves: tuple[int, ...]) -> Turn:
    output = item.get("output")
    text = output if isinstance(output, str) else _text_of({"content": output})
    try:
        answer = mapping(orjson.loads(text)) if text.startswith("{") else {}
    except orjson.JSONDecodeError:
        answer = {}
    shown = [text, *(value for value in answer.values() if isinstance(value, str))]
    board = next((board for words in shown[::-1] for board in boards_in(words)), None)
    # A call that the environment rejected did not move anything.
    played = () if "error" in answer and board is None else moves
    reward, total = (number(answer.get(name), None, MAX_MAGNITUDE) for name in ("reward", "total_reward"))
    return Turn(played, board, reward, total, event)


def _text_of(item: Json) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = (mapping(part).get("text") for part in items(content))
    return "\n".join(part for part in parts if isinstance(part, str))

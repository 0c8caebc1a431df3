"""What a model sees: the conversation read once, and the last board found in it.

The board is drawn with `#` wall, `_` floor, `O` target, `X` box, `√` box on target, `P` player, `S` player on target.
Only what stands last is parsed: earlier tool outputs are text to be hashed, no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.services.types import Json

ROWS = re.compile(r"(?:^[ \t]*[#_OX√PS](?: ?[#_OX√PS]){2,}[ \t]*\r?(?:\n|\Z)){3,}", re.MULTILINE)
BLANKS_READ = 3
"""How many trailing outputs without a board are looked at; beyond that nothing depends on their number."""


@dataclass(slots=True)
class Conversation:
    """What the policy knows when it is its turn."""

    text: bytes
    """Everything said, without ids: equal conversations have equal text, whatever named their items."""
    board: str | None = None
    """The last board shown, one row a line."""
    done: bool = False
    """The world said so, or every box is home."""
    blanks: int = 0
    """Tool outputs after that board that show none, counted up to `BLANKS_READ`."""
    calls: list[str] = field(default_factory=list)
    """Arguments of the tool calls made so far."""


def read(request: Json) -> Conversation:
    """The conversation of a Responses create request."""
    items = request.get("input")
    said: list[str] = []
    calls: list[str] = []
    outputs: list[str] = []
    heard: list[str] = []
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items or ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind == "function_call_output":
            text = _text(item.get("output"))
            outputs.append(text)
        elif kind == "function_call":
            text = _text(item.get("arguments"))
            calls.append(text)
        else:
            text = _text(item.get("content"))
            if item.get("role") == "user":
                heard.append(text)
        said.append(text)
    said.append(_text(request.get("instructions")))
    talk = Conversation("\x1e".join(said).encode("utf-8", "surrogatepass"), calls=calls)
    _look(talk, outputs, heard)
    return talk


def _look(talk: Conversation, outputs: list[str], heard: list[str]) -> None:
    """Fill in the last board: of the tool's outputs, else of what the user wrote."""
    for output in reversed(outputs):
        shown, done = _observation(output)
        talk.board = find_board(shown)
        talk.done |= done
        if talk.board or talk.done or talk.blanks == BLANKS_READ:
            break
        talk.blanks += 1
    else:
        for text in reversed(heard):
            if "#" in text and (board := find_board(text)):
                talk.board = board
                break
    if talk.board and "X" not in talk.board:
        talk.done = True


def _observation(output: str) -> tuple[str, bool]:
    """The words a world showed, and whether it called the episode over."""
    if output[:1] not in ("{", '"'):
        return output, False
    try:
        value = orjson.loads(output)
    except ValueError:
        return output, False
    if isinstance(value, str):
        return value, False
    shown = value.get("observation")
    if not isinstance(shown, str):
        shown = next((text for text in value.values() if isinstance(text, str) and "#" in text), "")
    return shown, any(value.get(name) is True for name in ("done", "terminated", "truncated"))


def find_board(text: str) -> str | None:
    """The last drawn board in `text` (spaces between symbols are allowed), or None."""
    if "#" not in text:
        return None
    for rows in reversed(ROWS.findall(text)):
        board: str = "\n".join(row.replace(" ", "").replace("\t", "") for row in rows.splitlines())
        if board.count("P") + board.count("S") == 1 and "#" in board and ("X" in board or "√" in board):
            return board
    return None


def _text(content: Any) -> str:
    """A message's or an output's words, whichever of the allowed shapes it has."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)

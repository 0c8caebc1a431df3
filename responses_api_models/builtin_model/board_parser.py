"""Parses the conversation in a request and finds the last board in it.

The board is drawn with `#` wall, `_` floor, `O` target, `X` box, `√` box on target, `P` player, `S` player on target.
Only the last board is parsed; earlier tool outputs are only hashed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.types import Json

ROWS = re.compile(r"(?:^[ \t]*[#_OX√PS](?: ?[#_OX√PS]){2,}[ \t]*\r?(?:\n|\Z)){3,}", re.MULTILINE)
MAX_BLANKS = 3
"""Maximum number of trailing outputs without a board that are counted; the policy treats larger numbers the same."""


@dataclass(slots=True)
class Conversation:
    """The input for one policy decision."""

    text: bytes
    """The text of all items without their ids, so the same conversation always has the same text."""
    board: str | None = None
    """The last board shown, one line per row."""
    done: bool = False
    """Whether the environment returned `done`, or every box is on a target."""
    blanks: int = 0
    """Number of tool outputs without a board since the last board, up to `MAX_BLANKS`."""
    calls: list[str] = field(default_factory=list)
    """Arguments of the tool calls made so far."""


def read(request: Json) -> Conversation:
    items = request.get("input")
    texts: list[str] = []
    calls: list[str] = []
    outputs: list[str] = []
    user_texts: list[str] = []
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
                user_texts.append(text)
        texts.append(text)
    texts.append(_text(request.get("instructions")))
    conversation = Conversation("\x1e".join(texts).encode("utf-8", "surrogatepass"), calls=calls)
    _find_last_board(conversation, outputs, user_texts)
    return conversation


def _find_last_board(conversation: Conversation, outputs: list[str], user_texts: list[str]) -> None:
    """Find the conversation's last board in the tool outputs, or else in the user messages."""
    for output in reversed(outputs):
        shown, done = _observation(output)
        conversation.board = find_board(shown)
        conversation.done |= done
        if conversation.board or conversation.done or conversation.blanks == MAX_BLANKS:
            break
        conversation.blanks += 1
    else:
        for text in reversed(user_texts):
            if "#" in text and (board := find_board(text)):
                conversation.board = board
                break
    if conversation.board and "X" not in conversation.board:
        conversation.done = True


def _observation(output: str) -> tuple[str, bool]:
    """Return the observation's text, and whether the environment ended the episode."""
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
    """Return the last board drawn in `text` (spaces between symbols are allowed), or None."""
    if "#" not in text:
        return None
    for rows in reversed(ROWS.findall(text)):
        board: str = "\n".join(row.replace(" ", "").replace("\t", "") for row in rows.splitlines())
        if board.count("P") + board.count("S") == 1 and "#" in board and ("X" in board or "√" in board):
            return board
    return None


def _text(content: Any) -> str:
    """Return the text of a message or tool output in any of the allowed formats."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)

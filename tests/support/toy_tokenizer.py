"""A tokenizer and a chat template small enough to think through, with what makes real ones hard.

The tokenizer takes the longest piece that fits, so that text which was generated in other pieces is tokenized otherwise
when it comes back: what a model says as `b`, `o`, `x` is read again as `box`. The template is ChatML in Qwen3's manner:
tools in the system turn, answers of tools inside a user turn, earlier reasoning dropped.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollyard.services.types import Json

SPECIAL = {"<|endoftext|>": 1, "<|im_start|>": 2, "<|im_end|>": 3}
END = SPECIAL["<|im_end|>"]
PIECES = (
    *("box", "bo", "ox", "push", "pu", "sh", "the ", "wall", "al", "go", "up", "left", " a", " the", "\n\n", ".\n"),
    *('{"name": "', '", "arguments": ', '"name"', '": "', '"}', "}}", "{}", '", "', "actions", "act", "ions"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "</", "user"),
    *("assistant", "system", "tool", "function", "## "),
)
"""Of more than one letter. The marks of calls and thoughts are one token each and yet text, as Qwen has them."""
_NUMBERED = {piece: 10 + index for index, piece in enumerate(PIECES)}
_TEXTS = {number: piece for piece, number in (_NUMBERED | SPECIAL).items()}
_LETTERS = 1000
"""A single letter's id is this and its code point."""
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_LONGEST = sorted(PIECES, key=len, reverse=True)
_PIECE = re.compile("|".join(map(re.escape, _LONGEST)) + "|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """Text as ids, special tokens among it."""
    ids: list[int] = []
    for part in _SPLIT.split(text):
        if part in SPECIAL:
            ids.append(SPECIAL[part])
        else:
            ids.extend(_NUMBERED.get(piece) or _LETTERS + ord(piece) for piece in _PIECE.findall(part))
    return ids


def decode(ids: list[int], *, special: bool = True) -> str:
    """Ids as text."""
    return "".join(_text(number) for number in ids if special or number not in SPECIAL.values())


def spelled(text: str) -> list[int]:
    """Text as ids of single letters: what a model may well say and no tokenizer makes of the text."""
    return [_LETTERS + ord(letter) for letter in text]


def _text(number: int) -> str:
    return _TEXTS.get(number) or chr(number - _LETTERS)


class ChatTemplate:
    """Conversations as text."""

    def __init__(self, end: str = "<|im_end|>\n") -> None:
        self.end = end
        """What ends a turn."""

    def render(self, messages: list[Json], tools: list[Json] | None = None, *, ask: bool = True, **kwargs: Any) -> str:
        """The text of a conversation; `ask`: with the words that make the model speak."""
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        rest = messages[1:] if system else messages
        if tools:
            listed = "\n".join(json.dumps(tool["function"]) for tool in tools)
            system = f"{system}\n\n<tools>\n{listed}\n</tools>".lstrip("\n")
        asked = max((at for at, message in enumerate(rest) if message["role"] == "user"), default=-1)
        text = f"<|im_start|>system\n{system}{self.end}" if system else ""
        for at, message in enumerate(rest):
            before = rest[at - 1]["role"] if at else ""
            after = rest[at + 1]["role"] if at + 1 < len(rest) else ""
            if message["role"] == "tool":
                text += "" if before == "tool" else "<|im_start|>user"
                text += f"\n<tool_response>\n{_said(message)}\n</tool_response>" + ("" if after == "tool" else self.end)
            elif message["role"] == "assistant":
                text += f"<|im_start|>assistant\n{_turn(message, at > asked, not after)}{self.end}"
            else:
                text += f"<|im_start|>{message['role']}\n{_said(message)}{self.end}"
        if ask:
            text += "<|im_start|>assistant\n" + (
                "" if kwargs.get("enable_thinking", True) else "<think>\n\n</think>\n\n"
            )
        return text


def _said(message: Json) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "▣") for part in content)


def _turn(message: Json, recent: bool, last: bool) -> str:
    """A turn of the model. Reasoning stays only behind the user's last question, and the last turn always has some."""
    content, thought = _said(message), message.get("reasoning_content") or message.get("reasoning") or ""
    if not thought and "</think>" in content:
        thought, _, content = content.removeprefix("<think>").partition("</think>")
    if recent and (thought or last):
        content = f"<think>\n{thought.strip()}\n</think>\n\n{content.lstrip()}"
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        content += "\n" if content or number else ""
        content += f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
    return content

"""A tokenizer and a chat template that are small enough to reason about and have the difficulties of real ones.

The tokenizer takes the longest piece that fits, so text generated in other pieces is tokenized differently when it
comes back: a model's `b`, `o`, `x` becomes `box`. The template is ChatML as Qwen3 writes it: tools in the system turn,
tool outputs inside a user turn, earlier reasoning dropped.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollyard.records.types import Json

SPECIAL = {"<|endoftext|>": 1, "<|im_start|>": 2, "<|im_end|>": 3}
END = SPECIAL["<|im_end|>"]
PIECES = (
    *("box", "bo", "ox", "push", "pu", "sh", "the ", "wall", "al", "go", "up", "left", " a", " the", "\n\n", ".\n"),
    *('{"name": "', '", "arguments": ', '"name"', '": "', '"}', "}}", "{}", '", "', "actions", "act", "ions"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "</", "user"),
    *("assistant", "system", "tool", "function", "## "),
)
"""Pieces of several letters. As in Qwen, the tags of calls and reasoning are single tokens but not special tokens."""
_NUMBERED = {piece: 10 + index for index, piece in enumerate(PIECES)}
_TEXTS = {number: piece for piece, number in (_NUMBERED | SPECIAL).items()}
_LETTERS = 1000
"""A single letter's id is this plus its code point."""
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")
_MAX_LENGTH = sorted(PIECES, key=len, reverse=True)
_PIECE = re.compile("|".join(map(re.escape, _MAX_LENGTH)) + "|.", re.DOTALL)


def encode(text: str) -> list[int]:
    ids: list[int] = []
    for part in _SPLIT.split(text):
        if part in SPECIAL:
            ids.append(SPECIAL[part])
        else:
            ids.extend(_NUMBERED.get(piece) or _LETTERS + ord(piece) for piece in _PIECE.findall(part))
    return ids


def decode(ids: list[int], *, special: bool = True) -> str:
    """The text of the ids; without special tokens if `special` is False."""
    return "".join(_text(number) for number in ids if special or number not in SPECIAL.values())


def encode_letters(text: str) -> list[int]:
    """The ids of single letters: a model may generate these, but `encode` never returns them."""
    return [_LETTERS + ord(letter) for letter in text]


def _text(number: int) -> str:
    return _TEXTS.get(number) or chr(number - _LETTERS)


class ChatTemplate:
    def __init__(self, end: str = "<|im_end|>\n") -> None:
        self.end = end
        """Text that ends a turn."""

    def render(self, messages: list[Json], tools: list[Json] | None = None, *, ask: bool = True, **kwargs: Any) -> str:
        """The text of a conversation; with `ask` it ends with the generation prompt."""
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        rest = messages[1:] if system else messages
        if tools:
            listed = "\n".join(json.dumps(tool["function"]) for tool in tools)
            system = f"{system}\n\n<tools>\n{listed}\n</tools>".lstrip("\n")
        last_user = max((index for index, message in enumerate(rest) if message["role"] == "user"), default=-1)
        text = f"<|im_start|>system\n{system}{self.end}" if system else ""
        for index, message in enumerate(rest):
            before = rest[index - 1]["role"] if index else ""
            after = rest[index + 1]["role"] if index + 1 < len(rest) else ""
            if message["role"] == "tool":
                text += "" if before == "tool" else "<|im_start|>user"
                text += f"\n<tool_response>\n{_text_of(message)}\n</tool_response>"
                text += "" if after == "tool" else self.end
            elif message["role"] == "assistant":
                text += f"<|im_start|>assistant\n{_turn(message, index > last_user, not after)}{self.end}"
            else:
                text += f"<|im_start|>{message['role']}\n{_text_of(message)}{self.end}"
        if ask:
            no_thoughts = "" if kwargs.get("enable_thinking", True) else "<think>\n\n</think>\n\n"
            text += f"<|im_start|>assistant\n{no_thoughts}"
        return text


def _text_of(message: Json) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "▣") for part in content)


def _turn(message: Json, recent: bool, last: bool) -> str:
    """A model turn. Only turns after the last user message keep their reasoning; the last turn always has a block."""
    content, thought = _text_of(message), message.get("reasoning_content") or message.get("reasoning") or ""
    if not thought and "</think>" in content:
        thought, _, content = content.removeprefix("<think>").partition("</think>")
    if recent and (thought or last):
        content = f"<think>\n{thought.strip()}\n</think>\n\n{content.lstrip()}"
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        content += "\n" if content or number else ""
        content += f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
    return content

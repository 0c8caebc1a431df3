"""A chat request for a tool call, and the constraint that makes random weights call it validly."""

from __future__ import annotations

from typing import Any

MOVES = ("Up", "Down", "Left", "Right")
TOOL = {
    "type": "function",
    "function": {
        "name": "step",
        "description": "Play moves in order and return the board after them.",
        "parameters": {
            "type": "object",
            "properties": {"actions": {"type": "array", "items": {"type": "string"}, "description": "Moves to play."}},
            "required": ["actions"],
            "additionalProperties": False,
        },
    },
}
_MOVE = f'"({"|".join(MOVES)})"'
CALL = (
    r'<tool_call>\n\{"name": "step", "arguments": \{"actions": \['
    + f"{_MOVE}(, {_MOVE}){{0,3}}"
    + r"\]\}\}\n</tool_call>"
)
"""A regex for every response. It only takes effect with tool_choice "auto" and a tool that is not strict."""


def asking(seed: int | None = 0, **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "You are playing Sokoban."},
            {"role": "user", "content": "Solve this:\n#####\n#PXO#\n#####"},
        ],
        "tools": [TOOL],
        "structured_outputs": {"regex": CALL},
        "temperature": 0.8,
        "max_tokens": 200,
        "seed": seed,
        **fields,
    }

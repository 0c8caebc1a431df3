"""Tool calls that the engine's parser could not read: they stay in the text, and the episode ends by that name."""

from __future__ import annotations

from rollyard.services.types import Json

OPENINGS = (
    *("<tool_call>", "<|tool_call", "<tool_calls>", "<function=", "<function_call"),
    *("[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call", "<|tool▁call", "<minimax:tool_call>", "<seed:tool_call>"),
)
"""How the common formats begin a call. vLLM's parsers leave what they cannot read in the content."""
UNREADABLE = "unreadable_call"


def mark_unreadable_tool_call(response: Json) -> None:
    """Set `finish_reason: unreadable_call` on a Response whose text begins a tool call and that has none."""
    if not response.get("tools") or response.get("status") == "incomplete":
        return  # a call that was cut by a limit ends the episode by the limit's name
    items = response["output"]
    if any(item["type"] == "function_call" for item in items):
        return
    texts = [part.get("text") or "" for item in items if item["type"] == "message" for part in item["content"]]
    if any(opening in text for text in texts for opening in OPENINGS):
        response["finish_reason"] = UNREADABLE

"""Detects tool calls that the engine's parser could not read and left in the text."""

from __future__ import annotations

from rollyard.records.types import Json

OPENINGS = (
    *("<tool_call>", "<|tool_call", "<tool_calls>", "<function=", "<function_call"),
    *("[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call", "<|tool▁call", "<minimax:tool_call>", "<seed:tool_call>"),
)
"""The start of a call in common formats. vLLM's parsers leave calls that they cannot read in the content."""
UNREADABLE = "unreadable_call"


def mark_unreadable_tool_call(response: Json) -> None:
    """Set `finish_reason: unreadable_call` on a Response that has no tool calls, but whose text contains the start of
    one.
    """
    if not response.get("tools") or response.get("status") == "incomplete":
        return  # a truncated call ends the episode with the finish reason of its limit
    items = response["output"]
    if any(item["type"] == "function_call" for item in items):
        return
    texts = [part.get("text") or "" for item in items if item["type"] == "message" for part in item["content"]]
    if any(opening in text for text in texts for opening in OPENINGS):
        response["finish_reason"] = UNREADABLE

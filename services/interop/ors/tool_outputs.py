"""Tools, prompts and results in the types of ORS."""

from __future__ import annotations

import orjson

from rollyard.records.types import Json
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.episode import Outcome, ServedEpisode

REASONS = {
    "tool_not_found": "not_found",
    "invalid_args": "input_validation",
    "execution_error": "input_validation",
    "episode_over": "episode_finished",
}


def listed_tools(environment: ServedEnvironment, tools: list[Json]) -> Json:
    """Return ListToolsOutput. In turn-based environments, the tool that sends a message is an ordinary one.

    Otherwise it is the terminal tool: a message of the model without a tool call ends the episode.
    """
    submit = environment.submit_tool
    specs = [_spec(tool) for tool in (*tools, *([submit] if environment.turn_based else []))]
    terminal = {"name": submit["name"], "arg": "answer", "description": submit["description"]}
    return {
        "tools": specs,
        "terminal_tool": None if environment.turn_based else terminal,
        "supports_score_group": False,
        "message_block_types": ["text"],
    }


def prompt_blocks(episode: ServedEpisode) -> list[Json]:
    """Return the conversation before the model's first turn as blocks."""
    return [{"type": "text", "text": message["content"]} for message in episode.messages]


def prompt_messages(episode: ServedEpisode) -> list[Json]:
    """Return the conversation before the model's first turn as messages with roles."""
    return [
        {"role": message["role"], "blocks": [{"type": "text", "text": message["content"]}]}
        for message in episode.messages
        if message["role"] in ("system", "user", "assistant")
    ]


def tool_output(outcome: Outcome) -> str:
    """Return RunToolOutput as JSON: a ToolOutput, or the words that tell the model why the call was not executed."""
    if outcome.problem:
        return orjson.dumps({"ok": False, "error": outcome.text, "reason": REASONS[outcome.problem]}).decode()
    output = {
        "blocks": [{"type": "text", "text": outcome.text}],
        "metadata": outcome.info or None,
        "reward": outcome.reward,
        "finished": outcome.done,
    }
    return orjson.dumps({"ok": True, "output": output}).decode()


def _spec(tool: Json) -> Json:
    return {
        "name": str(tool["name"]),
        "description": str(tool.get("description") or ""),
        "input_schema": tool.get("parameters"),
    }

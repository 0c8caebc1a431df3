"""The JSON schemas of actions, observations and states, for `GET /schema`."""

from __future__ import annotations

from rollyard.records.types import Json

_TEXT: Json = {"type": "string"}
_METADATA: Json = {"type": "object", "additionalProperties": True}


def action_schema(*, turn_based: bool) -> Json:
    """Return the schema of an action: a tool call, or a message of the model."""
    kinds = ["message"] if turn_based else ["call_tool", "list_tools", "message"]
    fields: Json = {
        "type": {"enum": kinds, "description": "What the model does."},
        "message": {
            **_TEXT,
            "description": "For `message`: the model's text. It ends a game that is played by tools.",
        },
        "metadata": _METADATA,
    }
    if not turn_based:
        fields["tool_name"] = {**_TEXT, "description": "For `call_tool`: the tool's name."}
        fields["arguments"] = {"type": "object", "description": "For `call_tool`: the tool's arguments."}
    return {"title": "Action", "type": "object", "properties": fields, "required": ["type"]}


def observation_schema() -> Json:
    """Return the schema of an observation."""
    fields: Json = {
        "text": {**_TEXT, "description": "What the model reads next."},
        "messages": {"type": "array", "items": {"type": "object"}, "description": "After a reset: the conversation."},
        "tools": {"type": "array", "items": {"type": "object"}, "description": "After a reset or list_tools."},
        "tool_name": _TEXT,
        "result": {"description": "The tool's result."},
        "error": {"anyOf": [{"type": "object"}, {"type": "null"}], "description": "Why a call was not executed."},
        "done": {"type": "boolean"},
        "reward": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "metadata": _METADATA,
    }
    return {"title": "Observation", "type": "object", "properties": fields}


def state_schema() -> Json:
    """Return the schema of a state."""
    fields: Json = {
        "episode_id": {"anyOf": [_TEXT, {"type": "null"}]},
        "step_count": {"type": "integer", "minimum": 0},
        "done": {"type": "boolean"},
    }
    return {"title": "State", "type": "object", "properties": fields}

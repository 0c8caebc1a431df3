"""Makes tools of an OpenEnv server's action schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollyard.records.types import RESERVED_PATHS, Json


@dataclass(frozen=True)
class ActionSchema:
    """The JSON schema of the actions that a server accepts."""

    schema: Json

    @property
    def is_mcp(self) -> bool:
        """Whether the actions are calls of MCP tools, which the server lists on request."""
        fields = self.schema.get("properties")
        return isinstance(fields, dict) and "tool_name" in fields

    def tool(self, name: str) -> Json:
        """Return the tool whose arguments are an action. Metadata is not for the model."""
        fields = {key: value for key, value in self._fields.items() if key != "metadata"}
        required = [key for key in self.schema.get("required", []) if key != "metadata"]
        parameters = {**self.schema, "type": "object", "properties": fields, "required": required}
        about = str(self.schema.get("description") or "Take one action in the environment.")
        return {"type": "function", "name": name, "description": about, "parameters": parameters, "strict": False}

    @property
    def text_field(self) -> str | None:
        """The only required string field, which can hold a message; None if there is not exactly one."""
        required = [key for key in self.schema.get("required", []) if key in self._fields]
        texts = [key for key in required if self._fields[key].get("type") == "string"]
        return texts[0] if len(required) == len(texts) == 1 else None

    @property
    def _fields(self) -> dict[str, Any]:
        fields = self.schema.get("properties")
        return fields if isinstance(fields, dict) else {}


def mcp_tools(listed: object) -> dict[str, Json]:
    """Return the tools of a `list_tools` observation by the names under which the model calls them.

    Each has the additional key `original`. A name that is part of Rollyard's wire format gets the prefix `env_`.
    """
    tools: dict[str, Json] = {}
    for found in listed if isinstance(listed, list) else ():
        if not isinstance(found, dict) or not isinstance(original := found.get("name"), str):
            continue
        name = f"env_{original}" if original.lower() in RESERVED_PATHS else original
        parameters = found.get("input_schema") or found.get("inputSchema") or {"type": "object", "properties": {}}
        about = str(found.get("description") or original)
        tool: Json = {"type": "function", "name": name, "description": about, "parameters": parameters}
        tools[name] = {**tool, "strict": False, "original": original}
    return tools

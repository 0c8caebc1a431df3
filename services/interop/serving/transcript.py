"""The conversation of a served episode: what the model reads first, and the transcript that `/verify` scores."""

from __future__ import annotations

import secrets
from typing import Any

from rollyard.records.types import Json


class Transcript:
    """The model's actions and their results, as the output of an OpenAI Response."""

    def __init__(self) -> None:
        self.output: list[Json] = []

    def add_message(self, role: str, text: str) -> None:
        """Append a message; messages of the user are observations of the environment."""
        if role != "assistant":
            self.output.append({"type": "message", "role": role, "content": text})
            return
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": f"msg_{secrets.token_hex(8)}", "type": "message", "role": role, "status": "completed"}
        self.output.append({**message, "content": content})

    def add_call(self, name: str, arguments: str, result: str) -> None:
        """Append a tool call and its result."""
        call_id = f"call_{len(self.output)}"
        call = {"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id}
        self.output.append({**call, "id": f"fc_{secrets.token_hex(8)}", "status": "completed"})
        self.output.append({"type": "function_call_output", "call_id": call_id, "output": result})

    def response(self) -> Json:
        """Return the episode as a Response object."""
        return {"id": "resp_episode", "object": "response", "status": "completed", "output": self.output}


def opening_messages(params: Json, added: Json, observation: object) -> list[Json]:
    """Return the messages before the model's first turn: additions, the row's input, then the observation."""
    given = params.get("input")
    items: list[Any] = [{"role": "system", "content": params["instructions"]}] if params.get("instructions") else []
    items += added.get("input") or []
    items += [{"role": "user", "content": given}] if isinstance(given, str) else list(given or [])
    if isinstance(observation, str) and observation:
        items.append({"role": "user", "content": observation})
    elif isinstance(observation, list):
        # `/seed_session` returns items; `/reset` may return the parts of one message.
        is_items = all(isinstance(item, dict) and "role" in item for item in observation)
        items += observation if is_items else [{"role": "user", "content": observation}]
    return [_message(item) for item in items if isinstance(item, dict) and item.get("role")]


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, or a list of content parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)


def _message(item: Json) -> Json:
    role = "system" if item["role"] == "developer" else str(item["role"])
    return {"role": role, "content": text_of(item.get("content"))}

"""The episode of one OpenEnv client: resets, steps and states become calls of an episode."""

from __future__ import annotations

import secrets
from typing import Any

from rollyard.records.types import Json
from rollyard.services.interop.serving.environment import ServedEnvironment
from rollyard.services.interop.serving.episode import Outcome, ServedEpisode
from rollyard.services.interop.serving.json_body import InvalidBody, object_in, text_in

_MESSAGE_FIELDS = ("message", "text", "content")


class NotReset(ValueError):
    """The client stepped before its first reset."""

    def __init__(self) -> None:
        super().__init__("no episode is open: send a reset first")


class Player:
    """Plays one episode at a time; a reset closes the episode before it."""

    def __init__(self, environment: ServedEnvironment) -> None:
        self.environment = environment
        self._episode: ServedEpisode | None = None
        self._episode_id: str | None = None

    async def reset(self, asked: Json) -> Json:
        """Open an episode for the task that the client asks for, and return the first observation.

        Raises UnknownTask or InvalidBody for an unusable request, and Failure if the environment fails.
        """
        row = self.environment.tasks.choose(asked)
        given = asked.get("episode_id")
        if given is not None and not (isinstance(given, str) and len(given) <= 255):
            raise InvalidBody(f"episode_id is {given!r:.100}; expected a string of at most 255 characters")
        await self.close()
        self._episode = episode = self.environment.episode(row)
        self._episode_id = given or secrets.token_hex(16)
        try:
            await episode.open()
        except BaseException:
            await self.close()
            raise
        tools = [tool_spec(tool) for tool in episode.tools]
        text = "\n\n".join(message["content"] for message in episode.messages)
        observed = {"text": text, "messages": episode.messages, "tools": tools}
        return {"observation": observed, "reward": None, "done": False, "metadata": {"episode_id": self._episode_id}}

    async def step(self, action: Json) -> Json:
        """Take one step. Raises InvalidBody for an action that is not of the schema, NotReset, and Failure."""
        kind = action.get("type") or _kind_of(action)
        if kind == "list_tools":
            return {"observation": {"tools": self.tools()}, "reward": None, "done": False}
        if kind == "call_tool":
            name = text_in(action, "tool_name")
            return self._observed(await self.call(name, object_in(action, "arguments")), {"tool_name": name})
        if kind == "message":
            text = next((action[name] for name in _MESSAGE_FIELDS if name in action), None)
            if not isinstance(text, str):
                raise InvalidBody(f"message is {text!r:.100}; expected a string")
            return self._observed(await self._open_episode().say(text), {})
        raise InvalidBody(f"type is {kind!r:.100}; expected call_tool, list_tools or message")

    async def call(self, name: str, arguments: Json) -> Outcome:
        """Call a tool by name; the submit tool sends its argument as the model's message. Raises NotReset."""
        episode = self._open_episode()
        if name != self.environment.submit_name:
            return await episode.call(name, arguments)
        if not isinstance(answer := arguments.get("answer"), str):
            return Outcome(f"answer is {answer!r:.100}; expected a string", problem="invalid_args")
        return await episode.say(answer)

    @property
    def is_open(self) -> bool:
        """Whether an episode was opened and not closed; it may be over."""
        return self._episode is not None

    def tools(self) -> list[Json]:
        """Return the tools of the open episode, else those of the environment, and the one that submits an answer."""
        own = self._episode.tools if self._episode is not None else self.environment.tools
        return [tool_spec(tool) for tool in (*own, self.environment.submit_tool)]

    def state(self) -> Json:
        """Return OpenEnv's State."""
        episode = self._episode
        return {
            "episode_id": self._episode_id,
            "step_count": episode.steps if episode else 0,
            "done": episode.over if episode else False,
        }

    async def close(self) -> None:
        """Close the episode, if one is open."""
        episode, self._episode, self._episode_id = self._episode, None, None
        if episode is not None:
            await episode.close()

    def _open_episode(self) -> ServedEpisode:
        if self._episode is None:
            raise NotReset
        return self._episode

    def _observed(self, outcome: Outcome, about: Json) -> Json:
        error: Any = {"error_type": outcome.problem, "message": outcome.text} if outcome.problem else None
        if outcome.problem == "episode_over":
            error["error_type"] = "execution_error"
        result = outcome.text if outcome.value is None else outcome.value
        observed = {**about, "text": outcome.text, "result": result, "error": error}
        return {"observation": observed, "reward": outcome.reward, "done": outcome.done, "metadata": outcome.info}


def tool_spec(tool: Json) -> Json:
    """Return a Responses function tool as OpenEnv's Tool."""
    schema = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"name": str(tool["name"]), "description": str(tool.get("description") or ""), "input_schema": schema}


def _kind_of(action: Json) -> str | None:
    if "tool_name" in action:
        return "call_tool"
    return "message" if any(name in action for name in _MESSAGE_FIELDS) else None

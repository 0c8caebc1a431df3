"""An agent for turn-based environments: each model message is one action."""

from __future__ import annotations

import re
from functools import partial
from typing import cast

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.agents.turn_agent.turn_episode import TurnEpisode
from rollyard.records.rollout_types import Response, ResponseItem
from rollyard.records.types import FinishReason, Json
from rollyard.services.responses import response_validity
from rollyard.services.server.app import Context

# Extracts the action for the environment from a message of the model.


class ActionTag:
    """Finds the last `<tag>...</tag>` in a message, ignoring case."""

    def __init__(self, name: str) -> None:
        # An action does not contain a tag: in "<a>up <a>down</a>" the action is "down". This keeps the search linear.
        self._pattern = re.compile(rf"<{name}>((?:(?!</?{name}>).)*)</{name}>", re.IGNORECASE | re.DOTALL)

    def action_in(self, text: str) -> str | None:
        """Return the stripped action; None if the text contains no complete tag."""
        found: list[str] = self._pattern.findall(text)
        return found[-1].strip() if found else None


def message_text(response: Response) -> str:
    """Return the text of all messages in a turn, without the reasoning."""
    messages = [item for item in cast(list[Json], response["output"]) if item.get("type", "message") == "message"]
    return "".join(response_validity.message_text(item) for item in messages)


def with_message(response: Response, text: str) -> Response:
    """Return the response with a single message, `text`, as its output."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message: ResponseItem = {
        "id": "msg_action",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    return {**response, "output": [message]}


class TurnAgentSettings(AgentSettings):
    max_steps: int = Field(default=10, ge=1)
    """Maximum number of model turns per episode, including turns without an action."""
    action_tag: str | None = Field(default=None, pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")
    """The tag that encloses the action. If it is `action`, the environment receives the text of the last
    `<action>...</action>`; if it is null, the complete message."""
    sum_steps: bool = False
    """Use the sum of the step rewards as the reward, and do not call /verify."""


class TurnAgent(Agent[TurnAgentSettings]):
    """Plays until the environment returns terminated or truncated, or the turns run out."""

    def __init__(self, settings: TurnAgentSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.episode_type = partial(TurnEpisode, sum_steps=settings.sum_steps)
        name = settings.action_tag
        self._tag = ActionTag(name) if name else None
        self._reminder = f"Your message has no <{name}>...</{name}>. Write your action as <{name}>...</{name}>."

    async def play(self, episode: Episode) -> FinishReason:
        assert isinstance(episode, TurnEpisode)
        for _ in range(self.settings.max_steps):
            turn = await episode.ask()
            if turn.ending not in (FinishReason.ANSWERED, FinishReason.LENGTH):
                return turn.ending
            action = self._action(turn.response)
            if action is None:
                episode.skip(turn.response, self._reminder)
            elif ending := (await episode.step(action)).ending:
                return ending
            if turn.ending is FinishReason.LENGTH:
                return turn.ending
        return FinishReason.MAX_STEPS

    def _action(self, response: Response) -> Response | None:
        if self._tag is None:
            return response
        action = self._tag.action_in(message_text(response))
        return None if action is None else with_message(response, action)


server = TurnAgent

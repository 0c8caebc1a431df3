"""An agent for games: plays until the environment is done, the model stops calling tools, or the steps run out."""

from __future__ import annotations

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.records.types import FinishReason


class GameAgentSettings(AgentSettings):
    max_steps: int = Field(default=10, ge=1)
    """Maximum number of tool calls per episode. All calls of a turn are run, so the last turn may exceed the limit."""


class GameAgent(Agent[GameAgentSettings]):
    """Stops when a tool returns `done`, when the model calls no tool or is cut off, or after `max_steps` tool calls."""

    async def play(self, episode: Episode) -> FinishReason:
        while True:
            turn = await episode.ask()
            calls = turn.calls
            if not calls or turn.cut_off:
                return turn.ending
            done = False
            for call in calls:
                done |= (await episode.call(call)).done
            if done:
                return FinishReason.DONE
            if episode.timings.tool_calls >= self.settings.max_steps:
                return FinishReason.MAX_STEPS


server = GameAgent

"""An agent for games: plays until the environment says done, the model stops calling tools, or the moves run out."""

from __future__ import annotations

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.services.types import FinishReason


class GameAgentSettings(AgentSettings):
    """Settings of the game agent."""

    max_steps: int = Field(default=10, ge=1)
    """Tool calls an episode may take. All calls of one turn are run, so the last turn may go beyond."""


class GameAgent(Agent[GameAgentSettings]):
    """Stops on `done` in a tool's answer; counts tool calls."""

    async def play(self, episode: Episode) -> FinishReason:
        """Ask, run every call of the turn, until something ends the game."""
        while True:
            turn = await episode.ask()
            if not turn.calls:
                return turn.ending
            answers = [await episode.call(call) for call in turn.calls]
            if any(answer.done for answer in answers):
                return FinishReason.DONE
            if episode.timings.tool_calls >= self.settings.max_steps:
                return FinishReason.MAX_STEPS


server = GameAgent

"""An agent for games: plays until the world says done, the model stops calling tools, or the moves run out."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import FinishReason


class GameAgentSettings(AgentSettings):
    """Settings of the game agent."""

    max_steps: int = Field(default=10, ge=1)
    """Tool calls an episode may take. All calls of one turn are run, so the last turn may go beyond."""


class GameAgent(Agent):
    """Stops on `done` in a tool's answer; counts tool calls."""

    Settings: ClassVar[type[ServerSettings]] = GameAgentSettings

    def __init__(self, settings: GameAgentSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._max_steps = settings.max_steps

    async def play(self, episode: Episode) -> FinishReason:
        """Ask, run every call of the turn, until something ends the game."""
        while True:
            turn = await episode.ask()
            if not turn.calls:
                return turn.ending
            answers = [await episode.call(call) for call in turn.calls]
            if any(answer.done for answer in answers):
                return FinishReason.DONE
            if episode.timings.tool_calls >= self._max_steps:
                return FinishReason.MAX_STEPS


server = GameAgent

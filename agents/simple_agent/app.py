"""The plain tool-using agent: plays until the model calls no tool; counts turns."""

from __future__ import annotations

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.services.types import FinishReason

MOST_STEPS = 256
"""An episode that never ends would end as a timeout of the rollout: a failure, and so a second try for the model."""


class SimpleAgentSettings(AgentSettings):
    """Settings of the simple agent."""

    max_steps: int | None = Field(default=None, ge=1)
    """Model calls an episode may take; null: as many as the model wants, up to 256."""


class SimpleAgent(Agent[SimpleAgentSettings]):
    """Stops when the model calls no tool."""

    async def play(self, episode: Episode) -> FinishReason:
        """Ask, run every call of the turn, until the model has said what it wants."""
        while True:
            turn = await episode.ask()
            if not turn.calls:
                return turn.ending
            for call in turn.calls:
                await episode.call(call)
            if episode.timings.model_calls >= (self.settings.max_steps or MOST_STEPS):
                return FinishReason.MAX_STEPS


server = SimpleAgent

"""A tool-calling agent: plays until the model calls no tool; counts turns."""

from __future__ import annotations

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.services.types import FinishReason

MOST_STEPS = 256
"""An unbounded episode would end in a rollout timeout, which is a failure, so the model would get a second attempt."""


class SimpleAgentSettings(AgentSettings):
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of model calls per episode; null: 256."""


class SimpleAgent(Agent[SimpleAgentSettings]):
    """Stops when the model calls no tool."""

    async def play(self, episode: Episode) -> FinishReason:
        while True:
            turn = await episode.ask()
            if not turn.calls:
                return turn.ending
            for call in turn.calls:
                await episode.call(call)
            if episode.timings.model_calls >= (self.settings.max_steps or MOST_STEPS):
                return FinishReason.MAX_STEPS


server = SimpleAgent

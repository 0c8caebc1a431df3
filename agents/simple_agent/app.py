"""A tool-calling agent: plays until the model calls no tool; counts turns."""

from __future__ import annotations

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.services.types import FinishReason

DEFAULT_MAX_STEPS = 256
"""Not unbounded: an endless episode would time out, which is a failure, so the model would get another attempt."""


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
            if episode.timings.model_calls >= (self.settings.max_steps or DEFAULT_MAX_STEPS):
                return FinishReason.MAX_STEPS


server = SimpleAgent

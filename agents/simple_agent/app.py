"""A tool-calling agent: plays until the model stops calling tools, or the steps run out. A step is a model call."""

from __future__ import annotations

from pydantic import Field

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.records.types import FinishReason

DEFAULT_MAX_STEPS = 256
"""Used if `max_steps` is null. Without a limit, an endless episode would time out and be retried as a failure."""


class SimpleAgentSettings(AgentSettings):
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of model calls per episode; 256 if null."""
    execute_tools: bool = True
    """False: the episode is one model call, whose tool calls are part of the answer and are not run."""


class SimpleAgent(Agent[SimpleAgentSettings]):
    """Stops when the model calls no tool or is cut off, after `max_steps` calls, or with `execute_tools: false`."""

    async def play(self, episode: Episode) -> FinishReason:
        while True:
            turn = await episode.ask()
            if not turn.calls or turn.cut_off or not self.settings.execute_tools:
                return turn.ending
            for call in turn.calls:
                await episode.call(call)
            if episode.timings.model_calls >= (self.settings.max_steps or DEFAULT_MAX_STEPS):
                return FinishReason.MAX_STEPS


server = SimpleAgent

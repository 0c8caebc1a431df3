"""Fetches a run's running episodes from its agents. An agent that does not respond is listed as unresponsive."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from rollyard.records.activity import STAGES, RunningEpisode, RunningEpisodes, Stage, StageActivity
from rollyard.records.errors import Failure
from rollyard.records.run_types import ServerInstance
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.http.transport import Transport

DEADLINE_S = 2.0
"""An agent that takes longer to respond is listed as unresponsive."""


@dataclass
class AgentActivity:
    """The responses of the run's agents."""

    responses: list[RunningEpisodes] = field(default_factory=list)
    unresponsive: dict[str, str] = field(default_factory=dict)
    """Instance -> why it did not report its episodes."""

    @property
    def total(self) -> int:
        """Number of running episodes."""
        return sum(response.total for response in self.responses)

    def oldest(self, limit: int) -> list[RunningEpisode]:
        """Return the oldest episodes of all agents, oldest first."""
        episodes = [episode for response in self.responses for episode in response.episodes]
        return sorted(episodes, key=lambda episode: -episode.age_s)[:limit]

    def stages(self) -> list[StageActivity]:
        """Return the stages of all agents combined, in the order in which an episode goes through them."""
        merged: dict[tuple[Stage, str], StageActivity] = {}
        for stage in (stage for response in self.responses for stage in response.stages):
            key = (stage.stage, stage.server)
            merged[key] = _merge(merged[key], stage) if key in merged else stage
        return sorted(merged.values(), key=lambda stage: (STAGES.index(stage.stage), stage.server))


async def fetch_activity(
    transport: Transport,
    instances: Sequence[ServerInstance],
    headers: Mapping[str, str],
    limit: int,
    deadline_s: float = DEADLINE_S,
) -> AgentActivity:
    """Fetch the oldest `limit` episodes from every instance of Rollyard's agents that has a URL."""
    activity = AgentActivity()

    async def fetch(instance: ServerInstance) -> None:
        url = f"{instance.url}/episodes?limit={limit}"
        try:
            response = raise_for_status(
                await transport.send("GET", url, b"", headers, deadline_s), instance.server_name
            )
            activity.responses.append(RunningEpisodes.model_validate_json(response.body))
        except Failure as failure:
            activity.unresponsive[instance.process_name] = failure.problem.detail
        except ValidationError:
            activity.unresponsive[instance.process_name] = "its response to GET /episodes is not in Rollyard's format"

    agents = [one for one in instances if one.server_type == "agents" and one.url is not None and not one.origin]
    await asyncio.gather(*(fetch(agent) for agent in agents))
    return activity


def _merge(one: StageActivity, other: StageActivity) -> StageActivity:
    medians = [stage.median_s for stage in (one, other) if stage.median_s is not None]
    return StageActivity(
        stage=one.stage,
        server=one.server,
        episodes=one.episodes + other.episodes,
        median_s=max(medians, default=None),
        stuck=one.stuck + other.stuck,
        slowest=max(one.slowest, other.slowest, key=lambda episode: episode.stage_s),
    )

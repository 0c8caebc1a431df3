"""The episodes that a run is playing, asked of its agents. One that does not answer is named and holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from rollyard.services.errors import Failure
from rollyard.services.head.activity import STAGES, RunningEpisode, RunningEpisodes, Stage, StageActivity
from rollyard.services.http.client import raise_for_status
from rollyard.services.http.transport import Transport
from rollyard.services.types import ServerInstance

DEADLINE_S = 2.0
"""An agent that is too busy to say what it does for so long is worth a line itself."""


@dataclass
class AgentActivity:
    """What the agents said."""

    answers: list[RunningEpisodes] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    """Instance -> why it told nothing."""

    @property
    def total(self) -> int:
        """Episodes being played."""
        return sum(answer.total for answer in self.answers)

    def oldest(self, limit: int) -> list[RunningEpisode]:
        """Of all agents, the oldest first."""
        together = [episode for answer in self.answers for episode in answer.episodes]
        return sorted(together, key=lambda episode: -episode.age_s)[:limit]

    def stages(self) -> list[StageActivity]:
        """Of all agents together, in the order of an episode."""
        merged: dict[tuple[Stage, str], StageActivity] = {}
        for stage in (stage for answer in self.answers for stage in answer.stages):
            key = (stage.stage, stage.server)
            merged[key] = _together(merged[key], stage) if key in merged else stage
        return sorted(merged.values(), key=lambda stage: (STAGES.index(stage.stage), stage.server))


async def fetch_activity(
    transport: Transport,
    instances: Sequence[ServerInstance],
    headers: Mapping[str, str],
    limit: int,
    deadline_s: float = DEADLINE_S,
) -> AgentActivity:
    """Ask every instance of an agent that has an address; the oldest `limit` episodes of each."""
    asked = AgentActivity()

    async def ask(instance: ServerInstance) -> None:
        url = f"{instance.url}/episodes?limit={limit}"
        try:
            answer = raise_for_status(await transport.send("GET", url, b"", headers, deadline_s), instance.server_name)
            asked.answers.append(RunningEpisodes.model_validate_json(answer.body))
        except Failure as failure:
            asked.silent[instance.process_name] = failure.problem.detail
        except ValidationError:
            asked.silent[instance.process_name] = "its GET /episodes is not of this stack"

    agents = [one for one in instances if one.server_type == "agents" and one.url is not None]
    await asyncio.gather(*(ask(agent) for agent in agents))
    return asked


def _together(one: StageActivity, other: StageActivity) -> StageActivity:
    medians = [stage.median_s for stage in (one, other) if stage.median_s is not None]
    return StageActivity(
        stage=one.stage,
        server=one.server,
        episodes=one.episodes + other.episodes,
        median_s=max(medians, default=None),
        stuck=one.stuck + other.stuck,
        slowest=max(one.slowest, other.slowest, key=lambda episode: episode.stage_s),
    )

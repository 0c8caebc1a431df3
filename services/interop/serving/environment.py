"""ServedEnvironment: one resources server of a run, as other projects' protocols see it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.client import ServerClient
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.interop.serving.episode import ServedEpisode
from rollyard.services.interop.serving.task_list import TaskList
from rollyard.services.responses.lenient_json import loads

ASK_S = 60.0
_ANSWER = {"type": "string", "description": "The final answer."}


@dataclass(frozen=True)
class ServedEnvironment:
    """The environment, its tools and its tasks. Opens episodes."""

    client: ServerClient
    server: str
    """Name of the resources server in its run."""
    name: str
    """Name under which clients see it."""
    description: str
    turn_based: bool
    """Whether an action is a message of the model (`/reset`, `/step`) instead of a tool call."""
    tasks: TaskList
    tools: list[Json] = field(default_factory=list)
    """The environment's tools as Responses function tools."""
    timeout_s: float = 600.0
    """Deadline of each call to the environment."""

    def episode(self, row: Json) -> ServedEpisode:
        """Return an episode for the row, which is not open yet."""
        return ServedEpisode(self.client, self.server, row, turn_based=self.turn_based, timeout_s=self.timeout_s)

    @property
    def submit_name(self) -> str:
        """Name of the tool that gives the final answer; it is not one of the environment's own names."""
        names = {tool["name"] for tool in self.tools}
        return next(name for name in ("submit", "submit_answer", "submit_final_answer") if name not in names)

    @property
    def submit_tool(self) -> Json:
        """A tool for clients that can only call tools. Its argument is the model's message."""
        what = (
            "Send a message to the environment, which answers with the next observation."
            if self.turn_based
            else "Give the final answer. This ends the episode and scores it."
        )
        parameters = {"type": "object", "properties": {"answer": _ANSWER}, "required": ["answer"]}
        return {"type": "function", "name": self.submit_name, "description": what, "parameters": parameters}


async def tools_of(client: ServerClient, server: str) -> list[Json]:
    """Return a server's tools; none if it does not list them, as those of other frameworks. Raises Failure."""
    found = await _get_list(client, server, "/tools")
    return [tool for tool in found if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


async def example_rows_of(client: ServerClient, server: str) -> list[Json]:
    """Return a server's example rows; none if it has none. Raises Failure if it does not answer."""
    return [row for row in await _get_list(client, server, "/examples") if isinstance(row, dict)]


async def is_turn_based(environment: ServedEnvironment) -> bool:
    """Return whether the environment plays with `/reset` and `/step`, tried with its first task.

    Only an environment without tools needs this test: one that has tools is played with them.
    """
    if environment.tools or not environment.tasks:
        return False
    turns = replace(environment, turn_based=True)
    episode = turns.episode(environment.tasks.rows[0])
    try:
        await episode.open()
    except Failure as failure:
        if failure.kind in (FailureKind.BAD_TASK, FailureKind.BAD_REQUEST) or failure.problem.upstream_status in (
            404,
            405,
        ):
            return False
        raise
    finally:
        await episode.close()
    return True


async def _get_list(client: ServerClient, server: str, path: str) -> list[Json]:
    response = await client.get(server, path, ASK_S)
    if response.status in (404, 405):
        return []
    found = loads(raise_for_status(response, server).body)
    return found if isinstance(found, list) else []

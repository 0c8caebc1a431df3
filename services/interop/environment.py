"""ServedEnvironment: one resources server of a run and its tasks, as other projects' protocols see it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollyard.records.data_files import DataFile
from rollyard.records.errors import Failure, FailureKind, OperatorError, RunError, did_you_mean
from rollyard.records.rows import valid_rows
from rollyard.records.types import Json
from rollyard.services.http.client import ServerClient
from rollyard.services.http.request import raise_for_status
from rollyard.services.interop.episode import EpisodeOutcome, ServedEpisode
from rollyard.services.responses.response_validity import loads

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
        return ServedEpisode(self.client, self.server, row, turn_based=self.turn_based, timeout_s=self.timeout_s)

    async def act(self, episode: ServedEpisode, name: str, arguments: Json) -> EpisodeOutcome:
        """Call a tool by name; the submit tool sends its argument as the model's message."""
        if name != self.submit_name:
            return await episode.call(name, arguments)
        if not isinstance(answer := arguments.get("answer"), str):
            return EpisodeOutcome(f"answer is {answer!r:.100}; expected a string", problem="invalid_args")
        return await episode.say(answer)

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


_FAMILY = "resources_servers"


async def open_environment(
    client: ServerClient, server: str | None, name: str | None, tasks: TaskList | None, timeout_s: float
) -> ServedEnvironment:
    """Return the environment. `server`: its name in the run, optional if the run has only one environment.

    Without `tasks`, they are the environment's example rows. Raises OperatorError if the server is unknown, and
    RunError if it does not answer.
    """
    families = (await client.book.current()).families
    known = [each for each, family in families.items() if family == _FAMILY]
    if server is None and len(known) == 1:
        server = known[0]
    if server is None or server not in known:
        found = "the run has no environment" if server is None and not known else f"--environment is {server!r}"
        hint = did_you_mean(server, known) if server else ""
        raise OperatorError(f"{found}{hint}; expected one of the run's environments: {', '.join(known) or 'none'}")
    try:
        tools = await tools_of(client, server)
        used = tasks or TaskList(await example_rows_of(client, server))
        about = f"The environment {server} of a Rollyard run"
        environment = ServedEnvironment(client, server, name or server, about, False, used, tools, timeout_s)
        return replace(environment, turn_based=await is_turn_based(environment))
    except Failure as failure:
        raise RunError(f"{server} cannot be served: {failure.problem.detail}") from failure


SPLITS = ("train", "validation", "test")


class UnknownTask(ValueError):
    """The client asked for a task that does not exist. The message says which ones do."""


class TaskList:
    """The rows of one dataset, under the name of a split."""

    def __init__(self, rows: Sequence[Json], split: str = "train") -> None:
        self.rows = rows
        self.split = split

    @classmethod
    def read(cls, file: DataFile, split: str) -> TaskList:
        """Read a dataset file. Raises OperatorError if a row is invalid, or if there are none."""
        rows = list(valid_rows(file))
        if not rows:
            raise OperatorError(f"{file} has no rows")
        return cls(rows, split)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: Any) -> Json:
        """Return the row with this number, counted from 0. Raises UnknownTask."""
        if not isinstance(index, int) or isinstance(index, bool):
            raise UnknownTask(f"index is {index!r:.100}; expected an integer")
        if not 0 <= index < len(self.rows):
            raise UnknownTask(f"index is {index!r:.40}; there are {len(self.rows)} tasks, counted from 0")
        return self.rows[index]

    def choose(self, asked: Json) -> Json:
        """Return the row for a reset: `row` itself, else number `index`, else `seed` modulo the number of rows.

        Without any of them, the row is random. Raises UnknownTask.
        """
        if (row := asked.get("row")) is not None:
            if not isinstance(row, dict):
                raise UnknownTask(f"row is a JSON {type(row).__name__}; expected an object")
            return row
        if asked.get("index") is not None:
            return self.row(asked["index"])
        if not self.rows:
            raise UnknownTask("this server has no tasks: send `row`, or start it with --data FILE")
        seed = asked.get("seed")
        if seed is None:
            return random.choice(self.rows)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UnknownTask(f"seed is {seed!r:.100}; expected a non-negative integer")
        return self.rows[seed % len(self.rows)]

    def check_split(self, split: Any) -> None:
        """Raise UnknownTask unless this is the name of the only split."""
        if split != self.split:
            raise UnknownTask(f"split is {split!r:.100}; this server has only {self.split!r}")

    def between(self, start: Any, stop: Any) -> list[int]:
        """Return the numbers of the tasks in `range(start, stop)`; both may be None or negative, as in a slice."""
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UnknownTask(f"{name} is {value!r:.100}; expected an integer or null")
        return list(range(len(self.rows)))[start:stop]

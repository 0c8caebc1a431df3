"""Opens a resources server of a run for other projects' protocols: asks it for its tools, tasks and kind of play."""

from __future__ import annotations

from dataclasses import replace

from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.services.http.client import ServerClient
from rollyard.services.interop.serving.environment import ServedEnvironment, example_rows_of, is_turn_based, tools_of
from rollyard.services.interop.serving.task_list import TaskList

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

"""The module from which the author of an environment imports.

You write an `Environment`. One object is one episode and keeps its state on `self`: no HTTP, no cookies, no locks.
`ResourcesServer` (resources_server.py) opens, looks up, times out and closes the sessions and implements the wire
format.

    class Guess(Environment[EnvironmentSettings]):
        user_template = "{question}"

        @tool
        async def guess(self, number: int) -> str:
            return "yes" if number == self.task["secret"] else "no"

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=float(response.text.strip() == str(self.task["secret"])))

    server = serve(Guess)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rollyard.records.rewards import VerdictField
from rollyard.records.types import Verdict
from rollyard.resources_servers.environment import (
    BadTask,
    Environment,
    EnvironmentSettings,
    Models,
    ToolResult,
    Turn,
    Verification,
    check_environment,
    settings_of,
)
from rollyard.resources_servers.resources_server import ResourcesServer
from rollyard.resources_servers.tools import InvalidToolCall, tool

__all__ = [
    "BadTask",
    "Environment",
    "EnvironmentSettings",
    "InvalidToolCall",
    "Models",
    "ResourcesServer",
    "ToolResult",
    "Turn",
    "Verdict",
    "VerdictField",
    "Verification",
    "serve",
    "tool",
]


def serve(environment: type[Environment[Any]]) -> type[ResourcesServer]:
    """Return the server class for an Environment. Call it in the last line of the environment's `app.py`.

    Raises OperatorError if `environment` is not a subclass of Environment or has a prompt that is not a string.
    """
    check_environment(environment)
    file = getattr(sys.modules.get(environment.__module__), "__file__", None)
    members = {
        "environment": environment,
        "folder": Path(file).parent if file else None,
        "Settings": settings_of(environment),
        "__doc__": environment.__doc__,
    }
    return type(f"{environment.__name__}Server", (ResourcesServer,), members)

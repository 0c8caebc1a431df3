"""Converts exceptions from an environment's methods into failures that say what is wrong with the code or the row."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import EXPECTED
from rollyard.records.types import Verdict
from rollyard.resources_servers.environment import BadTask
from rollyard.services.server.app import PLUGIN_EXITS, described

T = TypeVar("T")


async def bad_task_as_failure(work: Awaitable[T]) -> T:
    """Await `work`. Raises Failure bad_task if it raises BadTask, and Failure server_error if it raises what would end
    the server, such as SystemExit.
    """
    try:
        return await work
    except BadTask as error:
        raise Failure(FailureKind.BAD_TASK, str(error)) from error
    except SystemExit as error:
        raise Failure(FailureKind.SERVER_ERROR, f"the environment called sys.exit({error.code!r})") from error
    except PLUGIN_EXITS as error:
        raise Failure(FailureKind.SERVER_ERROR, f"the environment raised {described(error)}") from error


async def checked_verdict(work: Awaitable[Verdict]) -> Verdict:
    """Await the verdict.

    Raises Failure like `bad_task_as_failure`, and Failure malformed_answer if the verdict's reward is invalid.
    """
    try:
        return await bad_task_as_failure(work)
    except ValidationError as error:
        wrong = [each["input"] for each in error.errors() if each["loc"] == ("reward",) and each["type"] != "missing"]
        if not wrong or error.title != Verdict.__name__:
            raise
        detail = f"/verify returned reward {wrong[0]!r:.100}; {EXPECTED}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error

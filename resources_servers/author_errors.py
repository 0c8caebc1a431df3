"""Turns what an environment's methods raise into failures that say what the author or the row got wrong."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from pydantic import ValidationError

from rollyard.resources_servers.environment import BadTask
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.rollouts.rewards import EXPECTED
from rollyard.services.types import Verdict

T = TypeVar("T")


async def bad_task_as_failure(work: Awaitable[T]) -> T:
    """Raises Failure: bad_task for BadTask, server_error for sys.exit."""
    try:
        return await work
    except BadTask as error:
        raise Failure(FailureKind.BAD_TASK, str(error)) from error
    except SystemExit as error:  # in a task it would end the server
        raise Failure(FailureKind.SERVER_ERROR, f"the environment called sys.exit({error.code!r})") from error


async def checked_verdict(work: Awaitable[Verdict]) -> Verdict:
    """Raises Failure: bad_task like `bad_task_as_failure`, malformed_answer for a Verdict with an invalid reward."""
    try:
        return await bad_task_as_failure(work)
    except ValidationError as error:
        wrong = [each["input"] for each in error.errors() if each["loc"] == ("reward",) and each["type"] != "missing"]
        if not wrong or error.title != Verdict.__name__:
            raise
        detail = f"/verify returned reward {wrong[0]!r:.100}; {EXPECTED}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error

"""A shared grader for the tests of this folder, because its processes take seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollyard.resources_servers.answers.grader import AnswerGrader
from tests.unit.resources_servers.answers.grading import running_grader


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def grader() -> AsyncIterator[AnswerGrader]:
    """A grader with two seconds of CPU time per comparison."""
    async with running_grader(1, cpu_s=2.0) as shared:
        yield shared

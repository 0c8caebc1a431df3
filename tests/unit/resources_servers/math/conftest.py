"""A shared grader for the tests of this folder, because its processes take seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from rollyard.resources_servers.answers.grader import AnswerGrader
from tests.unit.resources_servers.answers.grading import judging


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def judge() -> AsyncIterator[AnswerGrader]:
    """With two seconds of CPU time for a comparison."""
    async with judging(cpu_s=2.0) as made:
        yield made

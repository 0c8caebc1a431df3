"""A grader that uses all CPUs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rollyard.resources_servers.answers.grader import AnswerGrader
from tests.unit.resources_servers.answers.grading import running_grader


@pytest.fixture(scope="session")
async def grader() -> AsyncIterator[AnswerGrader]:
    """A grader with two seconds of CPU time per comparison."""
    async with running_grader(0, cpu_s=2.0) as shared:
        yield shared

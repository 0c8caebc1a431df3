"""Base class of environments with a gold answer: settings, one grader per server, and the verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from rollyard.records.optional import require
from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.answers.grader import AnswerGrader, Grade
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict


class AnswerSettings(EnvironmentSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"verify_workers"}

    score: Literal["lenient", "strict"] = "lenient"
    """Which score becomes the reward. lenient accepts an answer in any format, strict only one in the requested format.
    """
    format_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Reward for a wrong answer that has the requested format."""
    equality: Literal["math_verify", "numbers"] = "math_verify"
    """How answers are compared. `numbers` does not require the `math` extra, but supports only plain numbers,
    fractions, percentages and words."""
    verify_workers: int = Field(default=0, ge=0)
    """Maximum number of worker processes that compare answers; they start on demand. 0 means one per CPU."""
    verify_cpu_s: float = Field(default=1.0, gt=0)
    """CPU seconds for all comparisons of one answer. An answer that takes longer is wrong. The rollout fails only if
    the gold answer alone takes more than half of this time."""


A = TypeVar("A", bound=AnswerSettings)


class AnswerEnvironment(Environment[A], Generic[A]):
    """Base class of environments whose tasks have a gold answer. The type argument is the settings class."""

    shared: ClassVar[AnswerGrader]
    verdict_fields: ClassVar[tuple[VerdictField, ...]] = (
        VerdictField(path="expected_answer", role="expected"),
        VerdictField(path="extracted_answer", role="extracted"),
        VerdictField(path="reason", role="reason"),
        VerdictField(path="extraction_method", role="reason", label="found by"),
    )

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: AnswerSettings) -> AsyncIterator[AnswerGrader]:
        """Create the server's grader. Raises OperatorError if the `math` extra is not installed."""
        if settings.equality != "math_verify":
            yield AnswerGrader(None)
            return
        require("math_verify", "math", f"{cls.__name__} (equality: math_verify)")
        workers = WorkerPool(settings.verify_workers, settings.verify_cpu_s)
        try:
            yield AnswerGrader(workers)
        finally:
            await workers.close()

    def verdict(self, grade: Grade, gold: str) -> Verdict:
        right = grade.lenient if self.settings.score == "lenient" else grade.strict
        return Verdict(
            reward=1.0 if right else self.settings.format_weight if grade.in_requested_format else 0.0,
            success=right,
            strict_score=float(grade.strict),
            lenient_score=float(grade.lenient),
            extracted_answer=grade.answer,
            extraction_method=grade.method,
            expected_answer=gold,
            reason=grade.reason,
        )

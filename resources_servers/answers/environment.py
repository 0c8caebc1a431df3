"""What answer environments share: settings, one judge per server, the verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, Literal

from pydantic import Field

from rollyard.resources_servers.answers.grader import AnswerGrader, Grade
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict
from rollyard.services.io.optional import require


class AnswerSettings(EnvironmentSettings):
    """What a config may set."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"verify_workers"}

    score: Literal["lenient", "strict"] = "lenient"
    """Which score is the reward: an answer in any form, or only in the form that the prompt asks for."""
    format_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Reward of a wrong answer that stands in the form that the prompt asks for."""
    equality: Literal["math_verify", "numbers"] = "math_verify"
    """`numbers` needs no extra and knows plain numbers, fractions, percents and words only."""
    verify_workers: int = Field(default=0, ge=0)
    """Processes that compare answers; 0: as many as there are CPUs. They are started when needed."""
    verify_cpu_s: float = Field(default=1.0, gt=0)
    """CPU seconds a comparison may take. An answer that takes longer is wrong; the rollout is a failure to verify only
    where the gold answer alone takes half of it."""


class AnswerEnvironment(Environment[AnswerSettings]):
    """A question with a gold answer."""

    shared: ClassVar[AnswerGrader]

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: AnswerSettings) -> AsyncIterator[AnswerGrader]:
        """One judge per server, with its pool of comparing processes. Raises OperatorError without the extra `math`."""
        if settings.equality != "math_verify":
            yield AnswerGrader(None)
            return
        require("math_verify", "math", f"{cls.__name__} (equality: math_verify)")
        workers = WorkerPool(settings.verify_workers, settings.verify_cpu_s)
        try:
            yield AnswerGrader(workers)
        finally:
            await workers.close()

    @property
    def judge(self) -> AnswerGrader:
        """The server's judge."""
        return self.shared

    def verdict(self, judged: Grade, gold: str) -> Verdict:
        """The judgement on the record."""
        right = judged.lenient if self.settings.score == "lenient" else judged.strict
        return Verdict(
            reward=1.0 if right else self.settings.format_weight if judged.asked_form else 0.0,
            success=right,
            strict_score=float(judged.strict),
            lenient_score=float(judged.lenient),
            extracted_answer=judged.answer,
            extraction_method=judged.method,
            expected_answer=gold,
            reason=judged.reason,
        )

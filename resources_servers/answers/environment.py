"""What the servers of answer worlds share: settings, the pool of comparers, the verdict, the example rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field

from rollyard.resources_servers.answers.grader import AnswerGrader, Grade
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.base import Environment, EnvironmentSettings, ResourcesServer, Verdict
from rollyard.resources_servers.environment import settings_of
from rollyard.resources_servers.examples import serve_examples
from rollyard.services.io.optional import require
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings

E = TypeVar("E", bound="type[AnswerEnvironment]")


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
    """A question with a gold answer. The server gives every episode its judge."""

    judge: ClassVar[AnswerGrader]

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


def answering(environment: type[AnswerEnvironment], folder: Path) -> type[ResourcesServer]:
    """The server class of an answer world that lives in `folder`."""

    class AnswerServer(ResourcesServer):
        __doc__ = environment.__doc__
        Settings: ClassVar[type[ServerSettings]] = settings_of(environment)

        def __init__(self, settings: ServerSettings, context: Context) -> None:
            assert isinstance(settings, AnswerSettings)
            self._workers: WorkerPool | None = None
            if settings.equality == "math_verify":
                require("math_verify", "math", context.name)
                self._workers = WorkerPool(settings.verify_workers, settings.verify_cpu_s)
            members: Mapping[str, Any] = {"judge": AnswerGrader(self._workers), "__doc__": environment.__doc__}
            super().__init__(type(environment.__name__, (environment,), dict(members)), settings, context)
            serve_examples(self.app, folder)

        async def stop(self) -> None:
            await super().stop()
            if self._workers is not None:
                await self._workers.close()

    AnswerServer.__name__ = f"{environment.__name__}Server"
    return AnswerServer

"""Base class of programming environments: settings, one sandbox per server, and the verdict."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rollyard.records.verdict_fields import VerdictField
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict
from rollyard.resources_servers.python_answers.program_extraction import AnswerProgram, parsed
from rollyard.services.sandbox.records import Ending, Outcome, SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox


class ProgramSettings(EnvironmentSettings):
    """Settings of programming environments."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"sandbox_slots"}

    score: Literal["lenient", "strict"] = "lenient"
    """Which score becomes the reward. lenient accepts a program found anywhere in the answer, strict accepts only the
    answer as truncated by the benchmark's own rule."""
    limits: SandboxLimits = SandboxLimits()
    """Resource limits per answer."""
    sandbox_slots: int | None = Field(default=None, ge=1)
    """Maximum number of answers that run in parallel; null: one per CPU. Waiting time does not count as run time."""
    sandbox_python: str | None = None
    """Python interpreter that runs the answers; null: the server's interpreter, without its installed packages."""
    allow_unsandboxed: bool = False
    """Start even if no isolation is available. Answers then run with all permissions of the server's user, and may
    leave processes behind."""


P = TypeVar("P", bound=ProgramSettings)


class ProgramEnvironment(Environment[P]):
    """Base class of environments whose tasks are solved by a program."""

    shared: ClassVar[Sandbox]
    verdict_fields: ClassVar[tuple[VerdictField, ...]] = (
        VerdictField(path="extracted_code", role="extracted", label="program"),
        VerdictField(path="reason", role="reason"),
        VerdictField(path="tests_passed", role="tests"),
        VerdictField(path="tests", role="tests", label="of"),
        VerdictField(path="ending", role="reason"),
    )

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: P) -> AsyncIterator[Sandbox]:
        """Start the server's sandbox. Raises OperatorError if no isolation is available."""
        sandbox = Sandbox(
            settings.limits,
            slots=settings.sandbox_slots,
            python=settings.sandbox_python,
            allow_unsandboxed=settings.allow_unsandboxed,
        )
        await sandbox.start()
        try:
            yield sandbox
        finally:
            await sandbox.stop()

    def verdict(self, scored: AnswerScore) -> Verdict:
        """Build the verdict from the score. Raises BadTask if the row's tests are not valid Python."""
        right = scored.lenient if self.settings.score == "lenient" else scored.strict
        outcome, program = scored.outcome, scored.program
        if outcome is not None and outcome.ending is Ending.BAD_TESTS:
            raise BadTask(outcome.reason)
        return Verdict(
            reward=float(right),
            success=right,
            strict_score=float(scored.strict),
            lenient_score=float(scored.lenient),
            extracted_code=program.code if program else None,
            extraction_method=program.method if program else "no program found",
            ending=outcome.ending if outcome else "no_program",
            reason=outcome.reason if outcome else "the answer contains no Python",
            passed_over=outcome.passed_over if outcome else "",
            tests_passed=outcome.tests_passed if outcome else 0,
            tests=outcome.tests if outcome else None,
            output=outcome.output if outcome else "",
            cpu_s=outcome.cpu_s if outcome else 0.0,
            sandbox=list(self.shared.layers.in_force),
        )


@dataclass(frozen=True)
class AnswerScore:
    strict: bool
    """Whether the text passes when truncated by the benchmark's rule and otherwise unchanged."""
    lenient: bool
    """Whether the extracted program passes, even if some of its top-level statements fail. True if `strict` is."""
    program: AnswerProgram | None
    outcome: Outcome | None
    """What `program` did."""


async def score(sandbox: Sandbox, tests: Trial, strict: str, found: AnswerProgram | None) -> AnswerScore:
    """Test the strict and the extracted program. `tests` has no code yet. Raises Failure if there is no verdict."""
    outcome = await sandbox.run(tests.model_copy(update={"code": found.code, "forgiving": True})) if found else None
    lenient = outcome is not None and outcome.passed
    if found is not None and outcome is not None and found.code.strip() == strict.strip():
        return AnswerScore(lenient and not outcome.passed_over, lenient, found, outcome)
    if not strict.strip() or parsed(strict) is None:
        return AnswerScore(False, lenient, found, outcome)
    plain = await sandbox.run(tests.model_copy(update={"code": strict}))
    if plain.passed and not lenient:
        return AnswerScore(True, True, AnswerProgram(strict, "unchanged text"), plain)
    return AnswerScore(plain.passed, lenient, found, outcome)


R = TypeVar("R", bound=BaseModel)


def parsed_row(row_type: type[R], task: Mapping[str, Any], benchmark: str) -> R:
    """Return the row's fields. Raises BadTask if it is not a row of the benchmark."""
    try:
        return row_type.model_validate(dict(task))
    except ValidationError as error:
        problems = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors(include_url=False))
        raise BadTask(f"not {benchmark} row: {problems}") from error

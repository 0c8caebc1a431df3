"""Scores a model's text twice: once as truncated by the benchmark's strict rule, and once as the extracted program."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.resources_servers.python_answers.program_extraction import Program, parsed
from rollyard.services.sandbox.records import Outcome, Trial
from rollyard.services.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Tests:
    """The tests that a program must pass."""

    names: tuple[str, ...]
    tests: tuple[str, ...]
    prelude: str = ""
    setup: str = ""
    times: int = 1
    """Factor by which the sandbox's time limits are multiplied."""

    def trial(self, code: str, *, forgiving: bool = False) -> Trial:
        return Trial(
            code=code,
            names=self.names,
            tests=self.tests,
            prelude=self.prelude,
            setup=self.setup,
            forgiving=forgiving,
            times=self.times,
        )


@dataclass(frozen=True)
class Score:
    strict: bool
    """Whether the text passes when truncated by the benchmark's rule and otherwise unchanged."""
    lenient: bool
    """Whether the extracted program passes, even if some of its top-level statements fail. Always true if `strict` is.
    """
    program: Program | None
    outcome: Outcome | None
    """Outcome of running `program`, or None if there is none."""


async def score(sandbox: Sandbox, tests: Tests, strict: str, found: Program | None) -> Score:
    """Run the strict and the extracted program, or only one if they are the same. Raises Failure if no verdict is
    possible.
    """
    outcome = await sandbox.run(tests.trial(found.code, forgiving=True)) if found else None
    lenient = outcome is not None and outcome.passed
    if found is not None and outcome is not None and found.code.strip() == strict.strip():
        return Score(lenient and not outcome.passed_over, lenient, found, outcome)
    if not strict.strip() or parsed(strict) is None:
        return Score(False, lenient, found, outcome)
    plain = await sandbox.run(tests.trial(strict))
    if plain.passed and not lenient:
        return Score(True, True, Program(strict, "unchanged text"), plain)
    return Score(plain.passed, lenient, found, outcome)

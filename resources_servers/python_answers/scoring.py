"""A model's text, as the programs to try: the one that the strict rule takes, and the one that we find."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.resources_servers.python_answers.program_extraction import Program, parsed
from rollyard.services.sandbox.records import Outcome, Trial
from rollyard.services.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class Tests:
    """What a task's programs must pass."""

    names: tuple[str, ...]
    tests: tuple[str, ...]
    prelude: str = ""
    setup: str = ""
    times: int = 1
    """Of the sandbox's limits of time."""

    def trial(self, code: str, *, forgiving: bool = False) -> Trial:
        """Of this program."""
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
    """Both readings of one text."""

    strict: bool
    """The text as it stands, cut as the benchmark cuts it, passes."""
    lenient: bool
    """The program found in it passes, whatever it does on its own; what is strictly right is right here too."""
    program: Program | None
    outcome: Outcome | None
    """Of `program`; None where the text holds none."""


async def score(sandbox: Sandbox, tests: Tests, strict: str, found: Program | None) -> Score:
    """Run what needs to be run: one trial where both readings agree. Raises Failure when no verdict can be had."""
    outcome = await sandbox.run(tests.trial(found.code, forgiving=True)) if found else None
    lenient = outcome is not None and outcome.passed
    if found is not None and outcome is not None and found.code.strip() == strict.strip():
        return Score(lenient and not outcome.passed_over, lenient, found, outcome)
    if not strict.strip() or parsed(strict) is None:
        return Score(False, lenient, found, outcome)
    plain = await sandbox.run(tests.trial(strict))
    if plain.passed and not lenient:
        return Score(True, True, Program(strict, "text as it stands"), plain)
    return Score(plain.passed, lenient, found, outcome)

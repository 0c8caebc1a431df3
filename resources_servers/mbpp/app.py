"""MBPP: short Python programs, each with its tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.mbpp.prompt_formats import lm_eval_program, modules_used, names_used
from rollyard.resources_servers.mbpp.time_limits import time_limit_factor
from rollyard.resources_servers.python_answers.environment import ProgramEnvironment, ProgramSettings
from rollyard.resources_servers.python_answers.program_extraction import find
from rollyard.resources_servers.python_answers.scoring import Tests, score


class MbppTask(BaseModel):
    """What a row says of its task, in MBPP's own names."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    test_list: list[str]
    test_setup_code: str = ""
    """Run before the tests, with the answer's names at hand."""
    challenge_test_list: list[str] = []
    """Harder tests of the data set; only with the setting of that name."""
    task_id: Any = None
    gold_cpu_s: float | None = Field(default=None, ge=0, le=600, strict=True, allow_inf_nan=False)
    """Seconds of CPU that the gold program takes; null: what is known of the `task_id`. Slow ones get more time."""


class MbppSettings(ProgramSettings):
    """What a config may set."""

    challenge_tests: bool = False
    """Ask the row's challenge tests too."""


class Mbpp(ProgramEnvironment[MbppSettings]):
    """Write a function that passes three tests."""

    def __init__(self, task: Mapping[str, Any], settings: MbppSettings) -> None:
        """Read the row's tests. Raises BadTask."""
        super().__init__(task, settings)
        try:
            row = MbppTask.model_validate(dict(task))
            tests = (*row.test_list, *(row.challenge_test_list if settings.challenge_tests else ()))
            names = names_used(row.test_setup_code, tests)
            # Not the answer's: one may call anything `math` that finds all numbers close.
            imports = "".join(f"import {module}\n" for module in modules_used(row.test_setup_code, tests))
        except ValidationError as error:
            problems = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors(include_url=False))
            raise BadTask(f"not an MBPP row: {problems}") from error
        except SyntaxError as error:
            raise BadTask(f"the row's tests are no Python: {error}") from error
        if not names:
            raise BadTask("the row's tests call no function; expected something like: assert f(1) == 2")
        times = time_limit_factor(row.task_id, row.gold_cpu_s, settings.limits.cpu_s)
        self.tests = Tests(names, tests, prelude=imports, setup=row.test_setup_code, times=times)

    async def verify(self, response: Verification) -> Verdict:
        """1 for a program that passes every test."""
        text = response.text
        found = find(text, self.tests.names)
        return self.verdict(await score(self.sandbox, self.tests, lm_eval_program(text), found))


server = serve(Mbpp)

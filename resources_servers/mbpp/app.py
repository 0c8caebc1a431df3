"""MBPP: short Python programming problems with tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.mbpp.prompt_formats import lm_eval_program, modules_used, names_used
from rollyard.resources_servers.mbpp.time_limits import time_limit_factor
from rollyard.resources_servers.python_answers.environment import ProgramEnvironment, ProgramSettings, Tests, score
from rollyard.resources_servers.python_answers.program_extraction import find


class MbppTask(BaseModel):
    """The task in a row, with MBPP's own field names."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    test_list: list[str]
    test_setup_code: str = ""
    """Code that runs before the tests. It can use the names that the answer defines."""
    challenge_test_list: list[str] = []
    """The dataset's harder tests, which run only with the setting `challenge_tests`."""
    task_id: Any = None
    gold_cpu_s: float | None = Field(default=None, ge=0, le=600, strict=True, allow_inf_nan=False)
    """CPU seconds that the gold program takes. If null, the value is looked up by `task_id`. A slow gold program raises
    the time limits."""


class MbppSettings(ProgramSettings):
    challenge_tests: bool = False
    """Also run the row's challenge tests."""


class Mbpp(ProgramEnvironment[MbppSettings]):
    def __init__(self, task: Mapping[str, Any], settings: MbppSettings) -> None:
        """Parse the row's tests. Raises BadTask if they are missing or invalid, or do not call a function."""
        super().__init__(task, settings)
        try:
            row = MbppTask.model_validate(dict(task))
            tests = (*row.test_list, *(row.challenge_test_list if settings.challenge_tests else ()))
            names = names_used(row.test_setup_code, tests)
            # Not the answer's imports: an answer could define its own `math`, in which all numbers are close.
            imports = "".join(f"import {module}\n" for module in modules_used(row.test_setup_code, tests))
        except ValidationError as error:
            problems = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors(include_url=False))
            raise BadTask(f"not an MBPP row: {problems}") from error
        except SyntaxError as error:
            raise BadTask(f"the row's tests are not valid Python: {error}") from error
        if not names:
            raise BadTask("the row's tests do not call a function; expected something like: assert f(1) == 2")
        times = time_limit_factor(row.task_id, row.gold_cpu_s, settings.limits.cpu_s)
        self.tests = Tests(names, tests, prelude=imports, setup=row.test_setup_code, times=times)

    async def verify(self, response: Verification) -> Verdict:
        """Give a reward of 1 for a program that passes every test."""
        text = response.text
        found = find(text, self.tests.names)
        return self.verdict(await score(self.sandbox, self.tests, lm_eval_program(text), found))


server = serve(Mbpp)

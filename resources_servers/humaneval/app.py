"""HumanEval: complete a Python function from its signature and docstring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.resources_servers.humaneval.prompt_formats import lm_eval_program, program
from rollyard.resources_servers.python_answers.environment import ProgramEnvironment, ProgramSettings, Tests, score


class HumanEvalTask(BaseModel):
    """The task in a row, with HumanEval's own field names."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: str
    """Python code up to and including the docstring of the requested function."""
    entry_point: str
    """Name of the requested function."""
    test: str
    """Code that defines `check(candidate)`."""


class HumanEval(ProgramEnvironment[ProgramSettings]):
    def __init__(self, task: Mapping[str, Any], settings: ProgramSettings) -> None:
        """Parse the row. Raises BadTask if it is not a HumanEval row."""
        super().__init__(task, settings)
        try:
            self.row = HumanEvalTask.model_validate(dict(task))
        except ValidationError as error:
            problems = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors(include_url=False))
            raise BadTask(f"not a HumanEval row: {problems}") from error
        name = self.row.entry_point
        if not name.isidentifier():
            raise BadTask(f"entry_point is {name[:80]!r}; expected a function name")
        # Tests may call the prompt's helpers. They must use the row's version, even if the answer redefines them.
        self.tests = Tests((name,), (f"{self.row.test}\ncheck({name})",), prelude=self.row.prompt)

    async def verify(self, response: Verification) -> Verdict:
        """Give a reward of 1 for a program that passes the check."""
        row, text = self.row, response.text
        found = program(row.prompt, row.entry_point, text)
        return self.verdict(await score(self.sandbox, self.tests, lm_eval_program(row.prompt, text), found))


server = serve(HumanEval)

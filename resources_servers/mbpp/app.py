"""MBPP: short Python programming problems with tests."""

from __future__ import annotations

import ast
import builtins
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollyard.records.types import Json
from rollyard.resources_servers.answers.extraction import cut
from rollyard.resources_servers.answers.programs import ProgramEnvironment, ProgramSettings, find, parsed_row, score
from rollyard.resources_servers.answers.prompts import chat, completion
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.services.sandbox.records import MAX_TIMES, Trial


class MbppTask(BaseModel):
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
        row = parsed_row(MbppTask, task, "an MBPP")
        try:
            tests = (*row.test_list, *(row.challenge_test_list if settings.challenge_tests else ()))
            names = names_used(row.test_setup_code, tests)
            # Not the answer's imports: an answer could define its own `math`, in which all numbers are close.
            imports = "".join(f"import {module}\n" for module in modules_used(row.test_setup_code, tests))
        except SyntaxError as error:
            raise BadTask(f"the row's tests are not valid Python: {error}") from error
        if not names:
            raise BadTask("the row's tests do not call a function; expected something like: assert f(1) == 2")
        times = time_limit_factor(row.task_id, row.gold_cpu_s, settings.limits.cpu_s)
        setup = row.test_setup_code
        self.tests = Trial(code="", names=names, tests=tests, prelude=imports, setup=setup, times=times)

    async def verify(self, response: Verification) -> Verdict:
        text = response.text
        found = find(text, self.tests.names)
        return self.verdict(await score(self.shared, self.tests, lm_eval_program(text), found))


GOLD_CPU_S = {123: 9.0}
"""CPU seconds that the gold program takes for all its tests, by task ID: the maximum over several machines. Task 123
took 2.4 to 9 s, the other 973 tasks less than 0.02 s each."""
_HEADROOM = 2
"""An answer may take this many times as long as the gold program."""


def time_limit_factor(task_id: Any, gold_cpu_s: float | None, limit_s: int) -> int:
    """Return the factor by which to multiply the default time limit, `limit_s`. It is 1 if the gold program is fast.

    `gold_cpu_s` is the value from the row. If it is None, the value is looked up by task ID.
    """
    known = GOLD_CPU_S.get(task_id, 0.0) if type(task_id) is int else 0.0
    gold = known if gold_cpu_s is None else gold_cpu_s
    return max(1, min(math.ceil(_HEADROOM * gold / limit_s), MAX_TIMES))


FORMS = ("chat", "lm_eval")
STOPS = ("[DONE]",)
MAX_OUTPUT_TOKENS = 512
SYSTEM = "You write Python. Answer with one complete program in a ```python block, and nothing that runs on its own."


def question(text: str, tests: Sequence[str]) -> str:
    request = f"You are an expert Python programmer, and here is your task: {text} Your code should pass these tests:"
    return request + "\n\n" + "\n".join(tests) + "\n[BEGIN]\n"


def create_params(form: str, text: str, tests: Sequence[str], shots: Sequence[Json] = (), system: str = SYSTEM) -> Json:
    """Build the request parameters of a task. `shots` are solved rows, which are used only in the lm-eval format."""
    if form == "chat":
        listed = "\n".join(tests)
        return chat(f"{text}\n\nYour code should pass these tests:\n\n```python\n{listed}\n```", system)
    solved = [question(shot["text"], shot["test_list"]) + f"{shot['code']}\n[DONE]" for shot in shots]
    return completion("\n\n".join([*solved, question(text, tests)]), STOPS, MAX_OUTPUT_TOKENS)


def lm_eval_program(text: str) -> str:
    """Extract the program as lm-eval does: cut the text at the stop string."""
    return cut(text, STOPS)


def names_used(setup: str, tests: Sequence[str]) -> tuple[str, ...]:
    """Return the names that the answer must define: the tests use them, but neither the tests nor Python defines them.

    If there are none, the tested function is named like a builtin, as in `assert sum(10, 15) == 6`. In this case,
    return the name of the first function called. Raises SyntaxError if the tests are not valid Python.
    """
    tree = ast.parse("\n".join([setup, *tests]))
    modules = modules_used(setup, tests)
    free = tuple(name for name in _free(tree) if name not in modules)
    if free:
        return free
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return tuple(called[:1])


def modules_used(setup: str, tests: Sequence[str]) -> tuple[str, ...]:
    """Return the standard library modules that the tests use but do not import, as in `sys.getsizeof(...)`."""
    tree = ast.parse("\n".join([setup, *tests]))
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    others = {node.id for node in loads if id(node) not in bases}
    return tuple(name for name in _free(tree) if name in sys.stdlib_module_names and name not in others)


def _free(tree: ast.Module) -> tuple[str, ...]:
    """Return the names that the tests use, but neither the tests nor Python define."""
    defined = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    defined |= {alias.asname or alias.name.partition(".")[0] for alias in _imported(tree)}
    defined |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return tuple(dict.fromkeys(name for name in used if name not in defined and not hasattr(builtins, name)))


def _imported(tree: ast.Module) -> Iterator[ast.alias]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from node.names


server = serve(Mbpp)

"""HumanEval: complete a Python function from its signature and docstring."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import BaseModel, ConfigDict

from rollyard.records.types import Json
from rollyard.resources_servers.answers import programs
from rollyard.resources_servers.answers.extraction import cut
from rollyard.resources_servers.answers.prompts import chat, completion
from rollyard.resources_servers.base import BadTask, Verdict, Verification, serve
from rollyard.services.sandbox.records import Trial


class HumanEvalTask(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: str
    """Python code up to and including the docstring of the requested function."""
    entry_point: str
    """Name of the requested function."""
    test: str
    """Code that defines `check(candidate)`."""


class HumanEval(programs.ProgramEnvironment[programs.ProgramSettings]):
    def __init__(self, task: Mapping[str, Any], settings: programs.ProgramSettings) -> None:
        super().__init__(task, settings)
        self.row = programs.parsed_row(HumanEvalTask, task, "a HumanEval")
        name = self.row.entry_point
        if not name.isidentifier():
            raise BadTask(f"entry_point is {name[:80]!r}; expected a function name")
        # Tests may call the prompt's helpers. They must use the row's version, even if the answer redefines them.
        tests = (f"{self.row.test}\ncheck({name})",)
        self.tests = Trial(code="", names=(name,), tests=tests, prelude=self.row.prompt)

    async def verify(self, response: Verification) -> Verdict:
        row, text = self.row, response.text
        found = program(row.prompt, row.entry_point, text)
        return self.verdict(await programs.score(self.shared, self.tests, lm_eval_program(row.prompt, text), found))


FORMS = ("chat", "lm_eval")
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
MAX_OUTPUT_TOKENS = 1024
_INDENTED = re.compile(r"^(?: {4}|\t)", re.MULTILINE)
SYSTEM = "You write Python. Answer with the whole function, imports included, in a ```python block."


def create_params(form: str, prompt: str, system: str = SYSTEM) -> Json:
    if form == "chat":
        return chat(f"Complete this function:\n\n```python\n{prompt.rstrip()}\n```", system)
    return completion(prompt, STOPS, MAX_OUTPUT_TOKENS)


def lm_eval_program(prompt: str, text: str) -> str:
    """Build the program as lm-eval does: the prompt, followed by the text up to the first stop string."""
    return prompt + cut(text, STOPS)


def program(prompt: str, entry_point: str, text: str) -> programs.AnswerProgram | None:
    """Extract the program from an answer that is the whole function, or only the rest of it after the prompt."""
    whole = programs.find(text, (entry_point,))
    if whole is not None and entry_point in programs.defined(whole.code):
        return programs.AnswerProgram(
            programs.joined([_before(prompt, entry_point), whole.code]), f"{whole.method}, whole function"
        )
    bodies = [programs.AnswerProgram(body, method) for body, method in _bodies(programs.visible_text(text))]
    cut_off = (candidate for body in bodies for candidate in programs.shortened(body.code, prompt))
    for candidate in chain(bodies, cut_off):
        code = prompt + candidate.code
        if _length(code, entry_point) > _length(prompt, entry_point):
            return programs.AnswerProgram(code, candidate.method)
    return None


def _before(prompt: str, entry_point: str) -> str:
    """Return the part of the prompt before the requested function: imports and helpers."""
    function = re.search(rf"^(?:async )?def {re.escape(entry_point)}\b", prompt, re.MULTILINE)
    return prompt[: function.start()] if function else ""


def _bodies(text: str) -> Iterator[tuple[str, str]]:
    for code in (programs.clean(code) for group in programs.fenced(text) for code in group):
        yield textwrap.indent(textwrap.dedent(code), "    "), "fenced block, rest of the function"
        yield f"    {code.lstrip()}", "fenced block, rest of the function, first line indented"
    text = programs.clean(text)
    yield text, "rest of the function"
    # Chat endpoints strip leading spaces from an answer.
    yield f"    {text.lstrip()}", "rest of the function, first line indented"
    yield textwrap.indent(text, "    "), "rest of the function, indented"
    if indented := _INDENTED.search(text):
        yield text[indented.start() :], "indented text, rest of the function"


def _length(code: str, entry_point: str) -> int:
    """Return the number of statements in the function, or 0 if there is none in valid Python."""
    tree = programs.parsed(code)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)] if tree else []
    return max((len(node.body) for node in functions if node.name == entry_point), default=0)


server = serve(HumanEval)

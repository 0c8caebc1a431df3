"""Defines MBPP's prompt formats, and finds out which names and modules the tests use."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Sequence

from rollyard.records.types import Json
from rollyard.resources_servers.answers.prompts import chat, completion
from rollyard.resources_servers.answers.reading.extraction import cut

FORMS = ("chat", "lm_eval")
STOPS = ("[DONE]",)
MAX_OUTPUT_TOKENS = 512
SYSTEM = "You write Python. Answer with one complete program in a ```python block, and nothing that runs on its own."


def question(text: str, tests: Sequence[str]) -> str:
    """Return the benchmark's prompt for a task, up to the point where the program starts."""
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

"""Which modules parse JSON Lines: they loop and hand a line to a JSON parser. There is to be one
(services/io/jsonl.py).

It goes by names: a variable called `line`, `raw` or `text` that is set or passed on inside a loop, and the usual
parsers. A module that hides the parser behind a function of its own with another name is not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

LINES = {"line", "raw", "text"}
PARSERS = {"loads", "_loads", "parse", "parsed", "lenient", "strict", "model_validate_json", "validate_json"}
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def jsonl_parsers(files: Iterable[Path]) -> list[Path]:
    """The files among `files` that parse JSON Lines."""
    return [file for file in files if _parses(ast.parse(file.read_text("utf-8")))]


def _parses(tree: ast.AST) -> bool:
    loops = (loop for loop in ast.walk(tree) if isinstance(loop, LOOPS))
    calls = (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call) and node.args)
    return any(_called(call) in PARSERS and _names(call.args[0]) & LINES for call in calls)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}

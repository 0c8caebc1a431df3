"""Finds modules that parse JSON Lines, i.e. pass a line to a JSON parser in a loop. Only records/jsonl.py should.

The search relies on names: a variable called `line` or `raw` that is passed to one of the usual parsers inside a loop.
It misses a module that wraps the parser in a function of another name.
"""

from __future__ import annotations

import ast
import re

LINES = {"line", "raw"}
PARSERS = {"loads", "_loads", "parse", "parsed", "lenient", "strict", "model_validate_json", "validate_json"}
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


_WORDS = [re.compile(rf"\b(?:{'|'.join(names)})\b") for names in (LINES, PARSERS)]


def parses_jsonl(text: str, tree: ast.AST) -> bool:
    if not all(words.search(text) for words in _WORDS):
        return False  # quickly
    loops = (loop for loop in ast.walk(tree) if isinstance(loop, LOOPS))
    calls = (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call) and node.args)
    return any(_called(call) in PARSERS and any(_names(each) & LINES for each in call.args) for call in calls)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}

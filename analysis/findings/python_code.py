"""Finds the functions of Python code line by line. Code of models is untrusted and often incomplete, so it is not
parsed: Python's parser warns about odd strings and can exhaust the stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_FENCED = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)
_DEF = re.compile(r"([ \t]*)(?:async\s+)?def\s+(\w+)\s*\((?:\s*self\b\s*,?)?(\s*[^)\s])?")
_MAX_CHARACTERS = 40_000
_MARKERS = re.compile(r"^\[(?:BEGIN|DONE|/?PYTHON)\][ \t]*$", re.MULTILINE)
"""Marks of few-shot prompts around a program."""
_BARE = re.compile(r"\s*(?:import \w+ *(?:;|$)|from [\w.]+ import |def \w+\(|class \w+[(:]|#!/)", re.MULTILINE)
_MAX_LINE = 1000


@dataclass(frozen=True)
class Function:
    """A function: the lines of its body are without comments and docstrings, and shortened if they are very long."""

    name: str
    has_parameters: bool
    """Not counting `self`."""
    lines: list[str]

    @property
    def outer_lines(self) -> list[str]:
        """The lines of the body that are in no block."""
        depth = min((_indent(line) for line in self.lines), default=0)
        return [line for line in self.lines if _indent(line) == depth]


def fenced(text: str) -> list[str]:
    """Return the contents of the fenced blocks of code, or a text that begins as a program."""
    text = _MARKERS.sub("", text)
    if "```" in text:
        return [code[:_MAX_CHARACTERS] for code in _FENCED.findall(text)]
    return [text[:_MAX_CHARACTERS]] if _BARE.match(text) else []


def functions(code: str) -> Iterator[Function]:
    """Yield the functions of a program, methods and inner functions included."""
    lines = [line[:_MAX_LINE].rstrip() for line in code[:_MAX_CHARACTERS].splitlines()]
    for at, line in enumerate(lines):
        found = _DEF.match(line)
        if found is None:
            continue
        body: list[str] = []
        for inner in lines[at + 1 :]:
            if inner.strip() and _indent(inner) <= len(found[1]):
                break
            body.append(inner)
        yield Function(found[2], found[3] is not None, _code_lines(body))


def without_comments(code: str) -> str:
    """Return the lines of a program without comments and without the docstrings of its functions."""
    plain = re.sub(r"(:\s*)[rRuU]?(\"\"\"|''')(?:.|\n)*?\2", r"\1", code[:_MAX_CHARACTERS])
    return "\n".join(_code_lines(plain.split("\n")))


def _code_lines(lines: list[str]) -> list[str]:
    without_docstring = re.sub(r"\A(\s*)[rRuU]?(\"\"\"|''')(?:.|\n)*?\2", r"\1", "\n".join(lines))
    kept = (re.sub(r"\s+#.*", "", line) for line in without_docstring.split("\n"))
    return [line for line in kept if line.strip() and not line.lstrip().startswith("#")]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

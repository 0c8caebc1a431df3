"""Finding the program in a model's text. Nothing here runs it, and nothing here knows whether it is right."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from resources_servers.answers.extraction import said

MOST_CHARACTERS = 30_000
"""Of a program; longer ones are not read, because reading holds up the server."""
_MOST_CUTS = 10
_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+.-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON = ("python", "python3", "py")
_FIRST = re.compile(r"^(?:def |async def |class |import |from \w[\w.]* import |@\w)", re.MULTILINE)
_BEGUN = re.compile(r"\[BEGIN\]\s*\n?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Program:
    """A program and how it was found."""

    code: str
    method: str


def parsed(code: str) -> ast.Module | None:
    """Its syntax tree; None for what is no Python."""
    found = _read(code)
    return found if isinstance(found, ast.Module) else None


def _read(code: str) -> ast.Module | int:
    """The syntax tree, or the number of the line where it stops being Python."""
    if len(code) > MOST_CHARACTERS:
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an answer's "\d" is its own affair
        try:
            return ast.parse(code)
        except SyntaxError as error:
            return error.lineno or 1
        except (ValueError, MemoryError, RecursionError):
            return 1


def defined(code: str) -> frozenset[str]:
    """The names that the program gives a meaning at its top level; none if it is no Python."""
    tree = parsed(code)
    found: set[str] = set()
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        else:
            names = (part for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
            found |= {name.id for name in names}
    return frozenset(found)


def find(text: str, wanted: Sequence[str]) -> Program | None:
    """The program in `text` that defines all of `wanted`; failing that, one that is Python; None if there is none."""
    python = [program for program in _candidates(said(text)) if program.code.strip() and parsed(program.code)]
    names = set(wanted)
    return next((program for program in python if names <= defined(program.code)), python[0] if python else None)


def blocks(text: str) -> list[str]:
    """The fenced blocks that are Python, or those without a language where none says so; an open one counts."""
    found = [(match.group(2).lower(), textwrap.dedent(match.group(3))) for match in _FENCE.finditer(text)]
    named = [code for language, code in found if language in _PYTHON]
    return named or [code for language, code in found if not language]


def _candidates(text: str) -> Iterator[Program]:
    fenced = blocks(text)
    if fenced:
        yield Program("\n".join(fenced), "fenced blocks" if len(fenced) > 1 else "fenced block")
        readable = [code for code in fenced if parsed(code)]
        if readable and len(readable) < len(fenced):
            yield Program("\n".join(readable), "fenced blocks that are Python")
        for code in reversed(readable):
            yield Program(code, "one of the fenced blocks")
    begun = _BEGUN.search(text)
    plain = (begun.group(1) if begun else text).partition("[DONE]")[0].partition("\n```")[0]
    yield Program(plain, "text between [BEGIN] and [DONE]" if begun else "text")
    yield from shortened(plain)
    if not fenced and (first := _FIRST.search(plain)):
        behind = plain[first.start() :]
        yield Program(behind, "text from its first definition")
        yield from shortened(behind)


def shortened(text: str, before: str = "") -> Iterator[Program]:
    """`text` up to the top-level statement that is no Python behind `before`: a base model runs on, and breaks off."""
    above = before.count("\n")
    for _ in range(_MOST_CUTS):
        wrong = _read(before + text)
        if not isinstance(wrong, int):
            return
        lines = text.splitlines(keepends=True)
        starts = [
            number
            for number, line in enumerate(lines[: max(wrong - above, 0)])
            if number and line.strip() and not line[0].isspace()
        ]
        if not starts:
            return
        text = "".join(lines[: starts[-1]])
        yield Program(text, "text up to where it stops being Python")

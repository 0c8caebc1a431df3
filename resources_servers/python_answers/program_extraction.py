"""Finding the program in a model's text. Nothing here runs it, and nothing here knows whether it is right."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from rollyard.resources_servers.answers.reading.extraction import without_reasoning
from rollyard.resources_servers.python_answers.code_blocks import blocks

MOST_CHARACTERS = 30_000
"""Of a program; longer ones are not read, because reading holds up the server."""
_MOST_CUTS = 10
_MOST_BEGINNINGS = 4
_BEGINNING = r"(?:def |async def |class |import |from \w[\w.]* import |@\w|[A-Za-z_]\w* = )"
_FIRST = re.compile(rf"^{_BEGINNING}", re.MULTILINE)
_INDENTED = re.compile(rf"^([ \t]+){_BEGINNING}.*\n?(?:\1.*\n?|[ \t]*\n)*", re.MULTILINE)
_BEGUN = re.compile(r"\[BEGIN\]\s*\n?(.*)", re.DOTALL)
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_NOTHING = re.compile("[\u200b-\u200d\u2060\ufeff]")
_NO_PYTHON = re.compile(r"^(?:[%!].*|>>> .*)$", re.MULTILINE)
"""A notebook's commands; what stands behind a console's prompt shows the program, and is no part of it."""
_FUTURE = re.compile(r"^from __future__ import [\w, ]+\n", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A program and how it was found."""

    code: str
    method: str


def parsed(code: str) -> ast.Module | None:
    """Its syntax tree; None for what is no Python."""
    found = _read(code)
    return found if isinstance(found, ast.Module) else None


@lru_cache(maxsize=4)
def _read(code: str) -> ast.Module | int:
    """The syntax tree, or the number of the line where it stops being Python."""
    if len(code) > MOST_CHARACTERS:
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an answer's "\d" is its own affair
        try:
            tree = ast.parse(code)
            compile(tree, "<answer>", "exec", dont_inherit=True)  # finds the `return` that no function is around
            return tree
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
            places = node.targets if isinstance(node, ast.Assign) else [node]
            parts = (part for place in places for part in ast.walk(place))
            found |= {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return frozenset(found)


def spoken(text: str) -> str:
    """What the model says behind its thinking, with the line ends that Python's own have."""
    return without_reasoning(text).replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")


def find(text: str, wanted: Sequence[str]) -> Program | None:
    """The program in `text` that defines all of `wanted`; failing that, one that is Python; None if there is none."""
    names, first, seen = set(wanted), None, {""}
    for program in _candidates(spoken(text)):
        if program.code in seen or not program.code.strip() or not parsed(program.code):
            continue
        if names <= defined(program.code):
            return program
        first = first or program
        seen.add(program.code)
    return first


def fenced(text: str) -> list[list[str]]:
    """The fenced blocks that may be the program: those called Python, and with them those without a language."""
    found = blocks(text, lambda code: parsed(code) is not None)
    named = [block.code for block in found if block.python]
    some = [block.code for block in found if block.python or not block.language]
    return [group for group in (named, some) if group][: 1 if named == some else 2]


def joined(pieces: Iterable[str]) -> str:
    """One program of several. Python wants its `from __future__` first."""
    code = "\n".join(pieces)
    future = "".join(_FUTURE.findall(code))
    return future + _FUTURE.sub("\n", code) if future else code


def _candidates(text: str) -> Iterator[Program]:
    for group in fenced(text):
        readable = [python for code in group if (python := _readable(code)) is not None]
        method = "fenced blocks that are Python" if len(readable) < len(group) else "fenced blocks"
        yield Program(joined(readable), method if len(group) > 1 else "fenced block")
        for python in reversed(readable):  # together they may be too long to be read
            yield Program(python, "one of the fenced blocks")
    begun = _BEGUN.search(text)
    plain = clean((begun.group(1) if begun else text).partition("[DONE]")[0].partition("\n```")[0])
    yield Program(plain, "text between [BEGIN] and [DONE]" if begun else "text")
    yield from shortened(plain)
    for first in islice(_FIRST.finditer(plain), _MOST_BEGINNINGS):
        behind = plain[first.start() :]
        yield Program(behind, "text from its first definition")
        yield from shortened(behind)
    if indented := _INDENTED.search(plain):
        yield Program(textwrap.dedent(indented.group()), "indented text")


def _readable(code: str) -> str | None:
    """`code` as Python: without what a text's way to us has put in, without a notebook's commands, or its beginning."""
    for version in (code, cleaned := clean(code), cleaned := _NO_PYTHON.sub("", cleaned)):
        if parsed(version):
            return version
    return next((program.code for program in shortened(cleaned) if program.code.strip() and parsed(program.code)), None)


def clean(code: str) -> str:
    """`code` with ordinary blanks."""
    return code if parsed(code) else _SPACES.sub(" ", _NOTHING.sub("", code))


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

"""Programs as answers: the base class of programming environments, and the extraction of the program from a text.

The extraction neither runs a program nor knows whether it is correct.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from rollyard.records.rewards import VerdictField
from rollyard.resources_servers.answers.extraction import without_reasoning
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict
from rollyard.services.sandbox.records import Ending, Outcome, SandboxLimits, Trial
from rollyard.services.sandbox.sandbox import Sandbox


class ProgramSettings(EnvironmentSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"sandbox_slots"}

    score: Literal["lenient", "strict"] = "lenient"
    """Which score becomes the reward. lenient accepts a program found anywhere in the answer, strict accepts only the
    answer as truncated by the benchmark's own rule."""
    limits: SandboxLimits = SandboxLimits()
    """Resource limits per answer."""
    sandbox_slots: int | None = Field(default=None, ge=1)
    """Maximum number of answers that run in parallel; null: one per CPU. Waiting time does not count as run time."""
    sandbox_python: str | None = None
    """Python interpreter that runs the answers; null: the server's interpreter, without its installed packages."""
    allow_unsandboxed: bool = False
    """Start even if no isolation is available. Answers then run with all permissions of the server's user, and may
    leave processes behind."""


P = TypeVar("P", bound=ProgramSettings)


class ProgramEnvironment(Environment[P]):
    """Base class of environments whose tasks are solved by a program."""

    shared: ClassVar[Sandbox]
    verdict_fields: ClassVar[tuple[VerdictField, ...]] = (
        VerdictField(path="extracted_code", role="extracted", label="program"),
        VerdictField(path="reason", role="reason"),
        VerdictField(path="tests_passed", role="tests"),
        VerdictField(path="tests", role="tests", label="of"),
        VerdictField(path="ending", role="reason"),
    )

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: P) -> AsyncIterator[Sandbox]:
        """Start the server's sandbox. Raises OperatorError if no isolation is available."""
        sandbox = Sandbox(
            settings.limits,
            slots=settings.sandbox_slots,
            python=settings.sandbox_python,
            allow_unsandboxed=settings.allow_unsandboxed,
        )
        await sandbox.start()
        try:
            yield sandbox
        finally:
            await sandbox.stop()

    def verdict(self, scored: AnswerScore) -> Verdict:
        right = scored.lenient if self.settings.score == "lenient" else scored.strict
        outcome, program = scored.outcome, scored.program
        if outcome is not None and outcome.ending is Ending.BAD_TESTS:
            raise BadTask(outcome.reason)
        return Verdict(
            reward=float(right),
            success=right,
            strict_score=float(scored.strict),
            lenient_score=float(scored.lenient),
            extracted_code=program.code if program else None,
            extraction_method=program.method if program else "no program found",
            ending=outcome.ending if outcome else "no_program",
            reason=outcome.reason if outcome else "the answer contains no Python",
            passed_over=outcome.passed_over if outcome else "",
            tests_passed=outcome.tests_passed if outcome else 0,
            tests=outcome.tests if outcome else None,
            output=outcome.output if outcome else "",
            cpu_s=outcome.cpu_s if outcome else 0.0,
            sandbox=list(self.shared.layers.in_force),
        )


class AnswerScore(NamedTuple):
    strict: bool
    """Whether the text passes when truncated by the benchmark's rule and otherwise unchanged."""
    lenient: bool
    """Whether the extracted program passes, even if some of its top-level statements fail. True if `strict` is."""
    program: AnswerProgram | None
    outcome: Outcome | None
    """What `program` did."""


async def score(sandbox: Sandbox, tests: Trial, strict: str, found: AnswerProgram | None) -> AnswerScore:
    """Test the strict and the extracted program. `tests` has no code yet. Raises Failure if there is no verdict."""
    outcome = await sandbox.run(tests.model_copy(update={"code": found.code, "forgiving": True})) if found else None
    lenient = outcome is not None and outcome.passed
    if found is not None and outcome is not None and found.code.strip() == strict.strip():
        return AnswerScore(lenient and not outcome.passed_over, lenient, found, outcome)
    if not strict.strip() or parsed(strict) is None:
        return AnswerScore(False, lenient, found, outcome)
    plain = await sandbox.run(tests.model_copy(update={"code": strict}))
    if plain.passed and not lenient:
        return AnswerScore(True, True, AnswerProgram(strict, "unchanged text"), plain)
    return AnswerScore(plain.passed, lenient, found, outcome)


R = TypeVar("R", bound=BaseModel)


def parsed_row(row_type: type[R], task: Mapping[str, Any], benchmark: str) -> R:
    try:
        return row_type.model_validate(dict(task))
    except ValidationError as error:
        problems = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in error.errors(include_url=False))
        raise BadTask(f"not {benchmark} row: {problems}") from error


# Extraction of the program.

MAX_CHARACTERS = 30_000
"""Longer programs are not parsed, because parsing blocks the server."""
_MAX_CUTS = 10
_MAX_BEGINNINGS = 4
_BEGINNING = r"(?:def |async def |class |import |from \w[\w.]* import |@\w|[A-Za-z_]\w* = )"
_FIRST = re.compile(rf"^{_BEGINNING}", re.MULTILINE)
_INDENTED = re.compile(rf"^([ \t]+){_BEGINNING}.*\n?(?:\1.*\n?|[ \t]*\n)*", re.MULTILINE)
_AFTER_BEGIN = re.compile(r"\[BEGIN\]\s*\n?(.*)", re.DOTALL)
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_ZERO_WIDTH = re.compile("[\u200b-\u200d\u2060\ufeff]")
_CONSOLE_LINE = re.compile(r"^(?:[%!].*|>>> .*)$", re.MULTILINE)
"""Matches notebook commands and the lines of a console session, which demonstrate the program but are not part of it.
"""
_FUTURE = re.compile(r"^from __future__ import [\w, ]+\n", re.MULTILINE)


class AnswerProgram(NamedTuple):
    code: str
    method: str


def parsed(code: str) -> ast.Module | None:
    tree = _tree_or_line(code)
    return tree if isinstance(tree, ast.Module) else None


@lru_cache(maxsize=4)
def _tree_or_line(code: str) -> ast.Module | int:
    """Return the syntax tree, or the number of the line with the syntax error."""
    if len(code) > MAX_CHARACTERS:
        return 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an invalid escape "\d" in an answer
        try:
            tree = ast.parse(code)
            compile(tree, "<answer>", "exec", dont_inherit=True)  # rejects a `return` outside a function
            return tree
        except SyntaxError as error:
            return error.lineno or 1
        except (ValueError, MemoryError, RecursionError):
            return 1


def defined(code: str) -> frozenset[str]:
    tree = parsed(code)
    found: set[str] = set()
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [node]
            parts = (part for target in targets for part in ast.walk(target))
            found |= {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return frozenset(found)


def visible_text(text: str) -> str:
    return without_reasoning(text).replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")


def find(text: str, wanted: Sequence[str]) -> AnswerProgram | None:
    """Return the first program that defines all `wanted` names, or else the first valid one, or None."""
    names, first, seen = set(wanted), None, {""}
    for program in _candidates(visible_text(text)):
        if program.code in seen or not program.code.strip() or not parsed(program.code):
            continue
        if names <= defined(program.code):
            return program
        first = first or program
        seen.add(program.code)
    return first


def fenced(text: str) -> list[list[str]]:
    """Return one or two groups of blocks: those marked as Python, and these with those that name no language."""
    found = blocks(text, lambda code: parsed(code) is not None)
    named = [block.code for block in found if _PYTHON.fullmatch(block.language)]
    possible = [block.code for block in found if not block.language or _PYTHON.fullmatch(block.language)]
    return [group for group in (named, possible) if group][: 1 if named == possible else 2]


def joined(pieces: Iterable[str]) -> str:
    code = "\n".join(pieces)
    future = "".join(_FUTURE.findall(code))
    return future + _FUTURE.sub("\n", code) if future else code


def _candidates(text: str) -> Iterator[AnswerProgram]:
    for group in fenced(text):
        readable = [python for code in group if (python := _readable(code)) is not None]
        method = "fenced blocks that are Python" if len(readable) < len(group) else "fenced blocks"
        yield AnswerProgram(joined(readable), method if len(group) > 1 else "fenced block")
        for python in reversed(readable):  # joined, they may be too long to be parsed
            yield AnswerProgram(python, "one of the fenced blocks")
    marked = _AFTER_BEGIN.search(text)
    plain = clean((marked.group(1) if marked else text).partition("[DONE]")[0].partition("\n```")[0])
    yield AnswerProgram(plain, "text between [BEGIN] and [DONE]" if marked else "text")
    yield from shortened(plain)
    for first in islice(_FIRST.finditer(plain), _MAX_BEGINNINGS):
        rest = plain[first.start() :]
        yield AnswerProgram(rest, "text from its first definition")
        yield from shortened(rest)
    if indented := _INDENTED.search(plain):
        yield AnswerProgram(textwrap.dedent(indented.group()), "indented text")


def _readable(code: str) -> str | None:
    """Make `code` valid: normalize spaces, remove notebook commands, or shorten it. Return None if it stays invalid."""
    for version in (code, cleaned := clean(code), cleaned := _CONSOLE_LINE.sub("", cleaned)):
        if parsed(version):
            return version
    return next((program.code for program in shortened(cleaned) if program.code.strip() and parsed(program.code)), None)


def clean(code: str) -> str:
    """Replace Unicode spaces with ordinary ones and remove zero-width characters, unless `code` is already valid."""
    return code if parsed(code) else _SPACES.sub(" ", _ZERO_WIDTH.sub("", code))


def shortened(text: str, before: str = "") -> Iterator[AnswerProgram]:
    """Yield shorter and shorter beginnings of `text`, each cut before the top-level statement with a syntax error.

    This removes incomplete statements, and text that a base model generates after its answer. `before` is the code that
    precedes `text`.
    """
    above = before.count("\n")
    for _ in range(_MAX_CUTS):
        error_line = _tree_or_line(before + text)
        if not isinstance(error_line, int):
            return
        lines = text.splitlines(keepends=True)
        starts = [
            number
            for number, line in enumerate(lines[: max(error_line - above, 0)])
            if number and line.strip() and not line[0].isspace()
        ]
        if not starts:
            return
        text = "".join(lines[: starts[-1]])
        yield AnswerProgram(text, "text up to where it stops being Python")


_MAX_BLOCKS = 50
"""Maximum number of blocks to keep. The last ones are kept, because the answer is at the end of the text."""
_MAX_ENDS = 8
"""Maximum number of closing fences to try for a block. There may be several, because a docstring can contain fences."""
_OPENING = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)[ \t]*+\{?\.?([\w+#.-]*+)[^\n`]*+\n", re.MULTILINE)
_PYTHON = re.compile(r"(?:i?python|py)[\d.]*")
_QUOTES = ('"""', "'''")
_QUOTED = re.compile(r"^[ \t]*> ?", re.MULTILINE)


class Block(NamedTuple):
    code: str
    language: str
    """Language from the opening fence, or an empty string if it does not name one."""


def blocks(text: str, is_complete: Callable[[str], bool]) -> list[Block]:
    """Return the fenced code blocks (``` or ~~~) in order, including nested ones and those in lists and quotes. An
    unclosed block extends to the end of the text.

    A block ends at the first closing fence before which `is_complete` accepts the code. If there is no such fence, it
    ends at the first closing fence.
    """
    found, position = deque[Block](maxlen=_MAX_BLOCKS), 0
    while opening := _OPENING.search(text, position):
        ends = list(_ends(text, opening))
        code, position = next(((code, end) for code, end in ends if is_complete(code)), ends[0])
        found.append(Block(code, opening.group(2).lower()))
    return list(found)


def _ends(text: str, opening: re.Match[str]) -> Iterator[tuple[str, int]]:
    """Yield possible contents with their ends: up to a fence on its own line, then to one that ends a line of code."""
    begin, fence = opening.end(), re.escape(opening.group(1))
    quoted = ">" in opening.group().partition(opening.group(1))[0]
    own_line, last_line = (re.compile(rf"{before}{fence}[`~]*[ \t]*$", re.MULTILINE) for before in ("^[ \\t>]*+", ""))
    first = text_end = len(text)
    for number, closing in enumerate(islice(own_line.finditer(text, begin), _MAX_ENDS)):
        code = text[begin : closing.start()]
        if number == 0:
            first = closing.start()
        elif not any(text.count(quotes, begin, first) % 2 for quotes in _QUOTES):
            break
        yield _stripped(code, quoted), closing.end()
    if trailing := last_line.search(text, begin, first):
        yield _stripped(text[begin : trailing.start()], quoted), trailing.end()
    if first == text_end:
        yield _stripped(text[begin:], quoted), text_end


def _stripped(code: str, quoted: bool) -> str:
    """Remove Markdown's `>` quote markers if `quoted`, and the common indentation."""
    code = _QUOTED.sub("", code) if quoted else code
    return textwrap.dedent(code) if code.lstrip("\n")[:1].isspace() else code

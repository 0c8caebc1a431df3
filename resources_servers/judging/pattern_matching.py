"""Bounds the work of matching a regular expression with one line.

Python's engine tries every way to divide a line among the repeats of a pattern. A repeat inside a repeat divides it in
exponentially many ways, so such a pattern is refused. k repeats in a row divide n characters in at most (n choose k)
ways, so a short line is matched at once, and a longer one in a process that can be killed.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from re import _constants as codes  # type: ignore[attr-defined]  # the only parser of Python's own syntax
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

MOST_STEPS = 10**7
"""About 0.3 seconds of matching."""
LONGEST = 100_000
FEW = 4
"""Up to this number of times, a repeat counts as its part written that often."""
MATCH_S = 2.0
_MATCH = "import re,sys,json;p,l,f=json.load(sys.stdin);m=re.fullmatch(p,l,f);print(json.dumps(m and m.group(1)))"
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


@dataclass(frozen=True, slots=True)
class _Choices:
    """How often the engine may have to choose: repeats of any length, and ways through the rest."""

    repeats: int = 0
    ways: int = 1

    def __add__(self, other: _Choices) -> _Choices:
        return _Choices(self.repeats + other.repeats, self.ways * other.ways)


def matched_group(template: str, code: str, line: str, flags: re.RegexFlag) -> str | None:
    """Return group 1 if the template with its {code} matches the whole line. Raises TimeoutError after MATCH_S."""
    pattern = template.replace("{code}", re.escape(code))
    if len(line) <= longest_line(template):
        found = re.fullmatch(pattern, line, flags)
        return found[1] if found else None
    # -I and -S: no environment variables, no site-packages. The start takes about 15 ms.
    command = [sys.executable, "-I", "-S", "-c", _MATCH]
    try:
        given = json.dumps([pattern, line, int(flags)])
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=MATCH_S, check=True)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{len(line)} characters were not matched within {MATCH_S:g} s") from error
    group: str | None = json.loads(done.stdout)
    return group


@lru_cache(maxsize=64)
def longest_line(pattern: str) -> int:
    """Return the most characters that the pattern matches within MOST_STEPS. Raises ValueError for nested repeats."""
    choices = _choices(parser.parse(pattern))
    steps = MOST_STEPS // choices.ways
    # The largest n with (n choose k) <= steps.
    low, high = 0, LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if math.comb(middle, choices.repeats) <= steps else (low, middle - 1)
    return low


def _choices(nodes: Iterable[tuple[Any, Any]]) -> _Choices:
    return reduce(_Choices.__add__, (_choice(code, argument) for code, argument in nodes), _Choices())


def _choice(code: Any, argument: Any) -> _Choices:
    if code in _REPEATS:
        least, most, body = argument
        inner = _choices(body)
        if most <= FEW:
            return _Choices(inner.repeats * most, inner.ways**most * (most - least + 1))
        if inner != _Choices():
            raise ValueError("repeats a part that itself repeats or offers a choice, such as (a+)+")
        return _Choices(repeats=int(least != most))
    if code is codes.BRANCH:
        branches = [_choices(branch) for branch in argument[1]]
        return _Choices(max(branch.repeats for branch in branches), sum(branch.ways for branch in branches))
    if code is codes.SUBPATTERN:
        return _choices(argument[-1])
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        return _choices(argument[1])
    if code is codes.ATOMIC_GROUP:
        return _choices(argument)
    if code is codes.GROUPREF_EXISTS:
        return sum((_choices(part) for part in argument[1:] if part), _Choices(ways=2))
    return _Choices()

"""The fenced blocks of a model's text: ``` or ~~~, closed or not, in lists and quotations, with fences of their own."""

from __future__ import annotations

import re
import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

_MOST_BLOCKS = 50
"""At the end of a text: the answer stands there."""
_MOST_ENDS = 8
"""Closing fences that are tried for one block: a docstring may hold some."""
_OPENING = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)[ \t]*+\{?\.?([\w+#.-]*+)[^\n`]*+\n", re.MULTILINE)
_PYTHON = re.compile(r"(?:i?python|py)[\d.]*")
_QUOTES = ('"""', "'''")
_QUOTED = re.compile(r"^[ \t]*> ?", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    code: str
    language: str
    """As the fence says; empty if it does not."""

    @property
    def python(self) -> bool:
        """Whether it says that it is Python."""
        return _PYTHON.fullmatch(self.language) is not None


def blocks(text: str, whole: Callable[[str], bool]) -> list[Block]:
    """The blocks in their order; one that is never closed goes to the text's end.

    A block ends at the first closing fence at which it is `whole`, else at the first there is.
    """
    found, place = deque[Block](maxlen=_MOST_BLOCKS), 0
    while opening := _OPENING.search(text, place):
        ends = list(_ends(text, opening))
        code, place = next(((code, end) for code, end in ends if whole(code)), ends[0])
        found.append(Block(code, opening.group(2).lower()))
    return list(found)


def _ends(text: str, opening: re.Match[str]) -> Iterator[tuple[str, int]]:
    """What the block may hold, and where it ends then: at a fence on a line of its own, else behind a line's words."""
    begin, fence = opening.end(), re.escape(opening.group(1))
    quoted = ">" in opening.group().partition(opening.group(1))[0]
    own_line, last_line = (re.compile(rf"{before}{fence}[`~]*[ \t]*$", re.MULTILINE) for before in ("^[ \\t>]*+", ""))
    first = text_end = len(text)
    for number, closing in enumerate(islice(own_line.finditer(text, begin), _MOST_ENDS)):
        code = text[begin : closing.start()]
        if number == 0:
            first = closing.start()
        elif not any(text.count(quotes, begin, first) % 2 for quotes in _QUOTES):
            break
        yield _stripped(code, quoted), closing.end()
    if behind := last_line.search(text, begin, first):
        yield _stripped(text[begin : behind.start()], quoted), behind.end()
    if first == text_end:
        yield _stripped(text[begin:], quoted), text_end


def _stripped(code: str, quoted: bool) -> str:
    """Without what stands before every line."""
    code = _QUOTED.sub("", code) if quoted else code
    return textwrap.dedent(code) if code.lstrip("\n")[:1].isspace() else code

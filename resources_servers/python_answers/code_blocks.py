"""Finds fenced code blocks (``` or ~~~) in a model's text, including unclosed and nested ones and those inside
lists and quotes.
"""

from __future__ import annotations

import re
import textwrap
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

_MAX_BLOCKS = 50
"""Maximum number of blocks to keep. The last ones are kept, because the answer is at the end of the text."""
_MAX_ENDS = 8
"""Maximum number of closing fences to try for a block. There may be several, because a docstring can contain fences."""
_OPENING = re.compile(r"^[ \t>]*+(`{3,}+|~{3,}+)[ \t]*+\{?\.?([\w+#.-]*+)[^\n`]*+\n", re.MULTILINE)
_PYTHON = re.compile(r"(?:i?python|py)[\d.]*")
_QUOTES = ('"""', "'''")
_QUOTED = re.compile(r"^[ \t]*> ?", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    code: str
    language: str
    """Language from the opening fence, or an empty string if it does not name one."""

    @property
    def python(self) -> bool:
        """Whether the opening fence names Python as the language."""
        return _PYTHON.fullmatch(self.language) is not None


def blocks(text: str, is_complete: Callable[[str], bool]) -> list[Block]:
    """Return the blocks in order. An unclosed block extends to the end of the text.

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
    """Yield the possible contents of the block, each with its end position. Fences on their own line are tried first,
    then a fence at the end of a line of code.
    """
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

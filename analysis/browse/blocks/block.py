"""Block: one part of a page, such as a message of a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from rollyard.analysis.browse.text.structured import structured
from rollyard.analysis.browse.text.typesetter import Typesetter
from rollyard.analysis.browse.text.visible import visible_line

Kind = Literal["prose", "verbatim", "structured", "pairs"]
MAX_LINES = 60
"""Longer blocks are shortened until they are opened."""
MAX_CHARACTERS = 4000
_TAIL_LINES = 12
"""Of a long prompt the end is shown, too, because the question follows the instructions and the examples."""
_MARGIN = 2


@dataclass(frozen=True)
class Block:
    """What a block shows. Texts are untrusted."""

    title: str
    colour: str
    """The title's colour, by its name in the palette."""
    text: str = ""
    kind: Kind = "prose"
    pairs: tuple[tuple[str, str, str], ...] = ()
    """After the text: label, value and colour (empty: that of text), if `kind` is `pairs`."""
    note: str = ""
    """A remark at the right of the title, such as the turn."""
    turn: int = 0
    call: int | None = None
    """Index among all calls of the episode, if the block is one."""
    lines: int = MAX_LINES
    """Number of lines that are shown before the block is opened; 0: only the title."""
    keep_end: bool = False
    key: object = None
    """What the page does with the block, such as the finding that it shows."""


@dataclass
class SetBlock:
    """A block as lines of one width."""

    block: Block
    strips: list[Strip] = field(default_factory=list)
    shortened: bool = False
    """Whether lines are left out."""


def set_block(block: Block, setter: Typesetter, *, is_open: bool, original: bool, find: str) -> SetBlock:
    """Set a block. `original`: the text as it was written instead of Markdown or fields. `find`: a text whose matches
    must be visible, so that a block that contains it is open.
    """
    inner = setter.narrower(_MARGIN)
    has_match = bool(find) and find.casefold() in block.text.casefold()
    opened = is_open or has_match
    body, cut = _body(block, inner, opened, original)
    if has_match and not any(find.casefold() in strip.text.casefold() for strip in body):
        body, cut = _body(replace(block, kind="verbatim"), inner, opened, original=True)
    margin = Strip([Segment(" " * _MARGIN)])
    soft = setter.palette.style("soft")
    strips = [_title(block, setter), *(Strip.join([margin, strip]) for strip in body)]
    if cut:
        strips.append(Strip([Segment(f"{' ' * _MARGIN}… {cut} (Enter)", soft)]))
    return SetBlock(block, [*strips, Strip([])], shortened=bool(cut))


def _title(block: Block, setter: Typesetter) -> Strip:
    style = setter.palette.style(block.colour, bold=True)
    note = visible_line(block.note)
    start = Strip([Segment("▌ ", style), Segment(visible_line(block.title), style)])
    start = start.crop_extend(0, max(setter.width - len(note) - 1, 4), None)
    return Strip.join([start, Strip([Segment(note, setter.palette.style("soft"))])]) if note else start


def _body(block: Block, setter: Typesetter, opened: bool, original: bool) -> tuple[list[Strip], str]:
    """Return the lines, and what is left out."""
    if block.kind == "pairs":
        if block.lines == 0 and not opened:
            return [], f"{len(block.pairs)} fields"
        lead = setter.wrapped(block.text) if block.text else []
        return [*lead, *setter.pairs((label, value, _style(setter, hue)) for label, value, hue in block.pairs)], ""
    text = block.text
    if not text:
        return [], ""
    whole = f"all {len(text):,} characters"
    if opened:
        return _set(block, setter, text, original), ""
    if block.lines == 0:
        return [], whole
    tail = ""
    if len(text) > MAX_CHARACTERS * 1.1:
        end = text[-MAX_CHARACTERS // 4 :]
        text, tail = text[:MAX_CHARACTERS], end if block.keep_end else ""
    strips = _set(block, setter, text, original)
    is_long = len(strips) > block.lines * 1.1
    if not is_long and text == block.text:
        return strips, ""
    if block.keep_end:
        last = (_set(block, setter, tail, original) if tail else strips)[-_TAIL_LINES:]
        gap = Strip([Segment("⋮", setter.palette.style("soft"))])
        return [*strips[: max(block.lines - _TAIL_LINES, 1)], gap, *last], whole
    return strips[: block.lines], whole


def _set(block: Block, setter: Typesetter, text: str, original: bool) -> list[Strip]:
    if original or block.kind == "verbatim":
        return setter.verbatim(text)
    return structured(text, setter) if block.kind == "structured" else setter.prose(text)


def _style(setter: Typesetter, colour: str) -> Style | None:
    return setter.palette.style(colour) if colour else None

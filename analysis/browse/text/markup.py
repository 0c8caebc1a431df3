"""Parses Markdown for a terminal: HTML stays text, formulas stay as they are written, links show their address."""

from __future__ import annotations

import re
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.text import Text

MAX_MARKDOWN = 40_000
"""Longer texts are shown as they are, as in the web viewer."""
_MAX_PARAGRAPH = 6000
"""Longer paragraphs stay as they are, too: the parser's time can grow with the square of their length."""
_MAX_CODE = 4000
"""So many characters of code are highlighted in a text: Pygments' time can grow with the square of a block's length."""
_FORMULA = re.compile(
    r"\$\$.{1,2000}?\$\$|\\\[.{1,2000}?\\\]|\\\(.{1,1000}?\\\)|\$(?![\s\d$])[^$\n]{1,400}?(?<!\s)\$(?!\d)", re.DOTALL
)


def markdown_of(text: str, code_theme: str) -> Markdown:
    """Return what Rich draws of a text. `text` must be visible already, because Rich passes control characters on."""
    found = _Markdown("", code_theme=code_theme, hyperlinks=False)
    found.parsed = _parser().parse(text)
    highlighted = 0
    for token in found.parsed:
        if token.type == "fence":
            highlighted += len(token.content)
            token.info = token.info if highlighted <= _MAX_CODE else ""
    return found


class _Heading(Heading):
    """A heading with its mark, because in a list of symbols the mark may be one of them: `# is a wall`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{'#' * int(self.tag[1:])} ", self.style_name).append_text(self.text)


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.core.ruler.at("inline", _paragraphs)
    return parser


def _paragraphs(state: StateCore) -> None:
    """Parse what paragraphs, headings and cells contain, unless it is long."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        if len(token.content) > _MAX_PARAGRAPH:
            token.children = [Token("text", "", 0, content=token.content)]
        else:
            token.children = []
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _formula(state: StateInline, silent: bool) -> bool:
    """Take a formula as code, so that its underscores and backslashes are not Markdown."""
    if state.src[state.pos] not in "$\\":
        return False
    match = _FORMULA.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    if not silent:
        token = state.push("code_inline", "code", 0)
        token.content = match[0]
    state.pos = match.end()
    return True

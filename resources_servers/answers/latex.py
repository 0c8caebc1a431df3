"""Normalizes LaTeX notation (spaces, brackets, fractions, roots) without changing values."""

from __future__ import annotations

import re
from functools import lru_cache

from rollyard.resources_servers.answers.unicode import to_ascii

_SHORT = {"min": "minutes", "sec": "seconds"}
"""Abbreviations that are also names of functions. After a number, they are units."""
_REWRITTEN = tuple(
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?<=\d)\{,\}(?=(?:\d{1,2}|\d{4,})(?![\d{,]))", "."),  # 4{,}5 in German
        (r",\s*\\!\s*|\{,\}", ","),  # in 1,\!000 and 1{,}000
        (r"\{ *: *\}", ":"),  # 9{:}30
        (r"\^ *\{ *\\prime *\\prime *\}", "''"),
        (r"\^ *(?:\{ *\\prime *\}|\\prime(?![a-z]))", "'"),
        (r"\\!\s*", ""),
        (r"(?:^|(?<==)) *(?:~|\\sim(?![a-z])) *(?=[\d$.\\])", r"\\approx "),
        (r"(?<=\d) *(?:\.{3,}|\\[lc]?dots(?![a-z]))", r"\\ldots"),  # must precede the removal of trailing dots
        (r"\\dot\s*(?:\{(\d)\}|(\d))(?:(\d*)\\dot\s*(?:\{(\d)\}|(\d)))?", r"\\overline{\1\2\3\4\5}"),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?", ""),
        (r"\\\\\s*\[[^\[\]]*[a-z]{2}\]", r"\\\\"),  # the gap in \\[4pt]
        (r"\\(?:displaystyle|textstyle|limits|nolimits|[lL]arge|LARGE|[hH]uge|small)(?![a-zA-Z])", ""),
        (r"\\(?:text)?color\s*\{\w+\}", ""),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\frac *(\\pi(?![a-z])|[a-z]) *(\\pi(?![a-z])|[\da-z])", r"\\frac{\1}{\2}"),
        (r"\\frac *(\d) *(\\pi(?![a-z])|[a-z])", r"\\frac{\1}{\2}"),
        (r"\\frac *(\\pi(?![a-z])|[\da-z]) *(?=\{)", r"\\frac{\1}"),
        (r"\\?¢|\\text *\{ *\\?¢ *\}|\\(?:text)?cents?(?![a-z])", r"\\text{ cents}"),
        (
            r"\\(?:mbox|textbf|textrm|textit|textsf|mathrm|mathbf|boldsymbol|bm|mathsf|mathit|pmb|operatorname|rm|bf)\s*(?=\{)",
            r"\\text",
        ),
        (r"\\(?:mathrm|text|rm|mathbf|bf)\s+([a-zA-Z])(?![a-zA-Z])", r"\\text{\1}"),
        (r"\\dots[cmo]?(?![a-z])|(?<=,) *(?:\.{3,}|\\cdots)(?= *,)", r"\\ldots "),
        (
            r"(?<=[\d}])(?:\\[,;: ]|[ ~])*\\text *\{ *(?:\\[,;: ] *)?(min|sec)s?\.? *\}(?! *[\d(\\{}^])",
            lambda match: rf"\text{{ {_SHORT[match[1]]}}}",
        ),
        (r"(?<=\d)[ ~]*(min|sec)s?\b\.?(?! *[\d(\\{^])", lambda match: f" {_SHORT[match[1]]}"),
        (r"(?<=[a-zA-Z])/ ?sec(?![a-z])", "/second"),
        (r"(?<=[\d}]) *\\text *\{ *(?:pct|per ?cent)\.? *\}", "%"),
        (r"(?<!\\)\\[,;: ]|\\(?:quad|qquad|enspace|thinspace)(?![a-zA-Z])|~|\s+", " "),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-z]))\s*|\\degree(?![a-zA-Z])| ?\\text *\{ *degrees? *\}", r"^\\circ"),
        (r"\\([%$])", r"\1"),
        (r"\\lbrace(?![a-z])", r"\\{"),
        (r"\\rbrace(?![a-z])", r"\\}"),
        (r"\\langle(?![a-z]) *", "("),
        (r"\\rangle(?![a-z]) *", ")"),
        (r"\\([lg]e|ne)q(?:slant)?(?![a-z])", r"\\\1"),
        (r"\\(?:lor|vee)(?![a-z])", r"\\text{ or }"),
        (r"\\(?:land|wedge)(?![a-z])", r"\\text{ and }"),
        (r"(?:^|(?<==)) *(?:~|\\sim(?![a-z])) *(?=[\d$.\\])", r"\\approx "),
        (r"(?<=\d) *(?:\\text *\{ *to *\}|to) *(?=\d)", ":"),  # 1 to 3
        (r"\\text\s*\{\s*([$%€£¥])\s*\}", r"\1"),
        (r"\\varnothing(?![a-z])", r"\\emptyset"),
        (r"\\text\s*\{ *[iI]nfinity *\}|(?<![a-zA-Z])[iI]nfinity(?![a-zA-Z])", r"\\infty"),
        (r"(?<![\w)}\]] )(?<![\w)}\]])\+ *\\infty", r"\\infty"),
        (r"\^\s*\{ *1 *\}", ""),
        (r"\\text\s*\{ *[uU][sS][dD] *\}|\bUSD\b|\bUS(?=\$)", "$"),
        (r"(?<![\\a-zA-Z{])(pi|infty|sin|cos|tan|cot|sec|csc|log|ln)(?![a-zA-Z])", r"\\\1"),
        (r"\\sqrt\s+(?:\(([^()]*)\)|(\d+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
        (r"(?<![\\a-zA-Z])sqrt\s*(?:\(([^()]*)\)|\{([^{}]*)\})", r"\\sqrt{\1\2}"),
    )
)
"""Rewrite rules (pattern, replacement), applied in this order."""
_REWRITTEN_WITHOUT_COMMANDS = tuple(
    rule
    for rule in _REWRITTEN
    if not re.fullmatch(r"\\\\(?:[^|()]|\([^|()]*\)|\((?:[^()]|\([^()]*\))*\))*", rule[0].pattern)
)
"""The rules without those whose matches begin with a backslash: most answers are plain numbers."""
_FREE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORDS_IN_TEXT = re.compile(r"[^\W\d_][^\W\d_ ,.'’&-]*(?:[ ,.'’&-]+[^\W\d_]+)*")
_WORDS = re.compile(r"[^\W\d_]{4,}(?: [^\W\d_]{2,})*")
_CHOICE = re.compile(r"\([A-Z]\)")
_TIMES = re.compile(r"(?:(?<=\d)(\\times|\\cdot|\*)(?=[\d.])|\\times|\\cdot|\*)")
_SINGLE = re.compile(r"\{(\w|\\[a-zA-Z]+)\}")
_SLASH = re.compile(r"(?<![\w.)}^/])(\d|[a-zA-Z]|\d{2,}|\\pi)/(\d|[a-zA-Z]|\d{2,})(?![\w.(])")
_MARKUP = re.compile(r"[\\^_{]")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


@lru_cache(maxsize=1024)
def normalized(text: str) -> str:
    """Return `text` in canonical notation."""
    text = _unwrapped(to_ascii(text).strip())
    for pattern, spelling in _REWRITTEN if "\\" in text else _REWRITTEN_WITHOUT_COMMANDS:
        text = pattern.sub(spelling, text)
    text = _without_bold(text)
    return text.strip().rstrip(".;,\\ ").strip()


def without_spaces(text: str) -> str:
    """Return the `normalized` text without spaces, except those between digits, for comparison as a string."""
    return _FREE_SPACE.sub("", normalized(text))


def unquoted(text: str) -> str:
    r"""Return the text `without_spaces`, with every `\text{...}` replaced by its content."""
    return without_spaces(_TEXT.sub(r"\1", normalized(text)))


def plain_spelling(text: str) -> str:
    r"""Give equivalent notations the same spelling: `1/2` and `\frac{1}{2}`, `2 \cdot x` and `2x`."""
    text = _TIMES.sub(lambda match: "*" if match[1] else "", unquoted(text))
    text = _SLASH.sub(r"\\frac{\1}{\2}", text.replace(r"^\circ", ""))
    return _SINGLE.sub(r"\1", text).replace("{}", "").strip("$ ")


def plain_words(text: str) -> str:
    r"""Return the lower-case text with the content of every `\text{...}`."""
    return " ".join(_TEXT.sub(r"\1", normalized(text)).replace(r"\&", "&").casefold().split())


def words(text: str) -> str | None:
    r"""Return the lower-case words of a textual answer (`\text{(A)}` -> `a`, `Evelyn` -> `evelyn`), or None for a
    formula.
    """
    text = normalized(text)
    plain = _TEXT.sub(r"\1", text).replace('"', "").replace("``", "").replace("''", "")
    bare = plain.strip(" ().").strip()
    # Without \text, a short run of letters is a product of variables, and a hyphen is a minus sign.
    pattern = _WORDS_IN_TEXT if plain != text else _WORDS
    if not pattern.fullmatch(bare) and not _CHOICE.fullmatch(text):
        return None
    return " ".join(bare.casefold().split())


def _without_bold(text: str) -> str:
    r"""Return the formula in `\text{...}` around a whole formula, as `\mathbf{\frac{3}{4}}` is written here."""
    if not text.startswith("\\text{") or "$" in text or not _MARKUP.search(text, 6):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0 and character == "}":
            return text[6:-1] if position == len(text) - 1 else text
    return text


def _unwrapped(text: str) -> str:
    for opening, ending in _WRAPPERS:
        inner = text.removeprefix(opening)
        if text.endswith(ending) and inner != text and len(inner) > len(ending):
            inner = inner.removesuffix(ending)
            bare = inner.replace(r"\$", "")
            if opening not in bare and ending not in bare:
                return _unwrapped(inner.strip())
    return text

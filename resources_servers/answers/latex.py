"""Normalizes LaTeX notation (spaces, brackets, fractions, roots) without changing values, and reads the simple forms
of an answer: its brackets, a base, a choice, the items of a list and the sides of a relation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

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
    r"""Return the lower-case words of a textual answer (`\text{(A)}` -> `a`), or None for a formula."""
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


_SIGNS = {
    "−": "-", "﹣": "-", "－": "-", "–": "-", "＋": "+", "×": r"\times ", "✕": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "÷": "/", "⁄": "/", "／": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "∪": r"\cup ",
    "∩": r"\cap ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∈": r"\in ",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R} ", "…": r"\ldots ", "′": "'", "’": "'",
    "°": r"^\circ ", "％": "%", "，": ",", "．": ".", "（": "(", "）": ")", "⟨": "(", "⟩": ")",
    "＝": "=", "＄": "$", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u200b": "", "\ufeff": "",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")


def to_ascii(text: str) -> str:
    """Convert digits in any script to 0-9, and symbols, superscripts and fraction characters to LaTeX."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match.group().translate(_SUPERSCRIPTS)}}}", text)
    return "".join(_ascii(character) for character in text)


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    if (sign := _SIGNS.get(character)) is not None:
        return sign
    if (digit := unicodedata.decimal(character, None)) is not None:
        return str(digit)
    parts = unicodedata.decomposition(character).split()
    if parts[:1] == ["<fraction>"]:
        above, _, below = "".join(chr(int(part, 16)) for part in parts[1:]).partition("⁄")
        return rf"\frac{{{above}}}{{{below}}}"
    return character


_STRAY_SIGN = re.compile(r"^\s*--\s*\d|^-?[\d.,]+\s*'+$|=\s*-?[\d.,]+\s*'+$")
"""Stray signs: `--7` and `7'` are not accepted as 7."""
MAX_DEPTH = 10
"""Maximum nesting depth of brackets. Each level doubles the parser's run time."""


def bracket_error(answer: str) -> str | None:
    """Return what is wrong with the brackets, or None if they are valid."""
    depth = deepest = 0
    for character in answer:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if depth:
        return "the brackets are not balanced"
    if _STRAY_SIGN.search(answer):
        return "a number has a stray sign: a double minus or an apostrophe"
    return f"the brackets are nested {deepest} deep; the limit is {MAX_DEPTH}" if deepest > MAX_DEPTH else None


def half_open(text: str) -> bool:
    text = normalized(text)
    return text[:1] + text[-1:] in ("[)", "(]")


def brackets(text: str) -> str:
    """Return the bracket that encloses the whole `text`: `(`, `[`, `{`, or an empty string."""
    text = normalized(text).replace(r"\{", "⟨").replace(r"\}", "⟩")
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([⟨") - (character in ")]⟩")
        if depth <= 0 and position < len(text) - 1:
            return ""
    return {"(": "(", "[": "[", "⟨": "{"}.get(text[:1], "") if text[-1:] in ")]⟩" else ""


_BASES = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
}  # fmt: skip
_BASED = re.compile(
    r"(-?)\(?(-?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)\)?(?:_\{?(?:\\text\{)?(?:base)?(\w+)\}*|\\text\{\(?(?:in)?base(\w+)\)?\}|\\text\{\(?(?:in)?base\}(\d+))"
)
_UPRIGHT = re.compile(r"\\text\{([0-9A-Fa-f]+)\}(?=_)")
_REMARK = re.compile(r"(_\{?(\d+)\}?)\\text\{\(?base\2\)?\}$")


def based(text: str) -> tuple[str, int] | None:
    r"""Return the digits and the base of `52_8`, `(52)_{\text{eight}}` or `52 \text{ base } 8`; None for other text."""
    text = without_spaces(text)
    if text.startswith("(") and text.endswith(")") and text.count("(") == 1:
        text = text[1:-1]
    match = _BASED.fullmatch(_UPRIGHT.sub(r"\1", _REMARK.sub(r"\1", text)))
    if match is None:
        return None
    name = (match[3] or match[4] or match[5]).lower()
    base = int(name) if name.isdecimal() else _BASES.get(name)
    return (match[1] + match[2].upper(), base) if base else None


def in_base_ten(text: str) -> str:
    """Convert a number with an explicit base to decimal. Return any other text unchanged."""
    number = based(text)
    try:
        return str(int(*number)) if number and 2 <= number[1] <= 36 else text
    except ValueError:  # a digit that is invalid in the base, or a radix point
        return text


_OPTION = re.compile(
    r"(?:(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?:? *)?"
    r"(?:\( *([A-Z]) *\)|([A-Z]) *[).:](?= |$|\\|[\d$-])|([A-Z])$) *[.:]? *(.*)",
    re.IGNORECASE | re.DOTALL,
)
_ANOTHER = re.compile(r"\([A-Z]\)|\b(?:or|not|and|but|maybe|either)\b|\b[A-Z]\)|^, *[A-Z]$|\?")


def choice(text: str) -> tuple[str, str] | None:
    r"""Return the letter and the value of a chosen option: `(C)`, `\textbf{(C) }15`, `Option C`; else None."""
    bare = _TEXT.sub(r"\1", normalized(text)).strip()
    match = _OPTION.fullmatch(bare)
    if match is None or not (letter := match[1] or match[2] or match[3]).isupper() or _ANOTHER.search(match[4]):
        return None
    return letter, match[4].strip()


RELATIONS = re.compile(r"=|<|>|\\(?:le|ge|ne|in|approx|simeq|equiv)(?![a-zA-Z])")
_EQUALS = re.compile(r"=|\\(?:approx|simeq)(?![a-zA-Z])")
_ITEMS = re.compile(r";|,(?!\d{3}(?!\d))|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])")
_STEP = re.compile(r"\\[{}]|\\[a-zA-Z]+|.", re.DOTALL)


def parts(text: str) -> list[str]:
    """Return the items of a list such as `2, 3 and 4`. A text that is not a list is a single item."""
    return [item for _, item in _split(text, _ITEMS) if item]


def sides(text: str) -> list[str]:
    return [side for _, side in _split(text, _EQUALS)]


def links(text: str) -> list[tuple[str, str]]:
    """Return the sides of a chain of relations, each with the sign before it. The first sign is empty."""
    return _split(text, RELATIONS)


def _split(text: str, at: re.Pattern[str]) -> list[tuple[str, str]]:
    found, start, sign = [], 0, ""
    outside = set(_outside(text))
    for match in at.finditer(text):
        if match.start() in outside:
            found.append((sign, text[start : match.start()].strip()))
            start, sign = match.end(), match.group().strip()
    return [*found, (sign, text[start:].strip())]


def _outside(text: str) -> Iterator[int]:
    """Yield the positions that are not inside brackets or braces."""
    depth = 0
    for step in _STEP.finditer(text):
        if step.group() in ("(", "[", "{", r"\{"):
            depth += 1
        elif step.group() in (")", "]", "}", r"\}"):
            depth -= 1
        elif depth <= 0:
            yield step.start()

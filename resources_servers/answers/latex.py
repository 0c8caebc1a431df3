r"""One spelling for what can be written in many: spaces, brackets, fractions, signs of Unicode. Values never change."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_SIGNS = {
    "−": "-", "﹣": "-", "－": "-", "–": "-", "＋": "+", "×": r"\times ", "✕": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "÷": "/", "⁄": "/", "／": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "∪": r"\cup ",
    "∩": r"\cap ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ", "∈": r"\in ",
    "∅": r"\emptyset ", "°": r"^\circ ", "％": "%", "，": ",", "．": ".", "（": "(", "）": ")", "⟨": "(", "⟩": ")",
    "＝": "=", "＄": "$", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u200b": "", "\ufeff": "",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_ROOT = re.compile(r"\\sqrt\s+(?:\(([^()]*)\)|(\d+|[a-zA-Z]))")
_BARE_ROOT = re.compile(r"(?<![\\a-zA-Z])sqrt\s*(?:\(([^()]*)\)|\{([^{}]*)\})")
_BARE_NAME = re.compile(r"(?<![\\a-zA-Z{])(pi|infty|sin|cos|tan|cot|sec|csc|log|ln)(?![a-zA-Z])")
_RELATIONS = re.compile(r"\\([lg]e|ne)q(?:slant)?(?![a-z])")
_SIGN_IN_TEXT = re.compile(r"\\text\s*\{\s*([$%€£¥])\s*\}")
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?")
_THOUSANDS = re.compile(r",\s*\\!\s*|\{,\}")
_TIGHT = re.compile(r"\\!\s*")
_FREE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_STYLES = re.compile(r"\\(?:displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])")
_SPACES = re.compile(r"(?<!\\)\\[,;: ]|\\(?:quad|qquad|enspace|thinspace)(?![a-zA-Z])|~|\s+")
_TEXTS = re.compile(r"\\(?:mbox|textbf|textrm|textit|textsf|mathrm|mathbf|mathsf|mathit|operatorname|rm|bf)\s*(?=\{)")
_FRACTIONS = re.compile(r"\\[dtc]frac")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])| ?\\text *\{ *degrees? *\}")
_ANGLES = re.compile(r"\\([lr])angle(?![a-z])\s*")
_LOGIC = re.compile(r"\\(lor|vee|land|wedge)(?![a-z])")
_RATIO = re.compile(r"(?<=\d) *(?:\\text *\{ *to *\}|to) *(?=\d)")
_WORDS_IN_TEXT = re.compile(r"[^\W\d_][^\W\d_ ,.'’&-]*(?:[ ,.'’&-]+[^\W\d_]+)*")
_WORDS = re.compile(r"[^\W\d_]{4,}(?: [^\W\d_]{2,})*")
_CHOICE = re.compile(r"\([A-Z]\)")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))


def ascii_signs(text: str) -> str:
    """Digits of every script as 0-9, signs as their LaTeX; superscripts and vulgar fractions keep their meaning."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT.sub(lambda match: f"^{{{match.group().translate(_SUPERSCRIPTS)}}}", text)
    return "".join(_ascii(character) for character in text)


@lru_cache(maxsize=1024)
def tidied(text: str) -> str:
    """`text` with one spelling for each thing that has several."""
    text = ascii_signs(text).strip()
    text = _unwrapped(text)
    text = _STYLES.sub("", _SIZES.sub("", _TIGHT.sub("", _THOUSANDS.sub(",", text))))
    text = _SPACES.sub(" ", _TEXTS.sub(r"\\text", _FRACTIONS.sub(r"\\frac", text)))
    text = _DEGREES.sub(r"^\\circ", text).replace(r"\%", "%").replace(r"\$", "$").replace(r"\lbrace", r"\{")
    text = _RELATIONS.sub(r"\\\1", text.replace(r"\rbrace", r"\}"))
    text = _LOGIC.sub(lambda match: rf"\text{{ {'or' if match[1] in ('lor', 'vee') else 'and'} }}", text)
    text = _RATIO.sub(":", _ANGLES.sub(lambda match: "(" if match[1] == "l" else ")", text))
    text = _SIGN_IN_TEXT.sub(r"\1", text).replace(r"\varnothing", r"\emptyset")
    text = _BARE_NAME.sub(r"\\\1", text)
    text = _ROOT.sub(lambda match: rf"\sqrt{{{match.group(1) or match.group(2)}}}", text)
    text = _BARE_ROOT.sub(lambda match: rf"\sqrt{{{match.group(1) or match.group(2)}}}", text)
    return text.strip().rstrip(".;,\\ ").strip()


def squeezed(text: str) -> str:
    """`tidied` without spaces, but for those between digits: for comparing letter by letter."""
    return _FREE_SPACE.sub("", tidied(text))


def unquoted(text: str) -> str:
    r"""`squeezed`, with the words of `\text{...}` standing free."""
    return squeezed(_TEXT.sub(r"\1", tidied(text)))


def words(text: str) -> str | None:
    r"""The words of an answer that is text: `\text{(A)}` -> `a`, `Evelyn` -> `evelyn`; None when it is a formula."""
    text = tidied(text)
    plain = _TEXT.sub(r"\1", text)
    bare = plain.strip(" ().").strip()
    # Without \text a short run of letters is a product of variables, and a hyphen is a minus.
    written = _WORDS_IN_TEXT if plain != text else _WORDS
    if not written.fullmatch(bare) and not _CHOICE.fullmatch(text):
        return None
    return " ".join(bare.casefold().split())


def _unwrapped(text: str) -> str:
    for opening, ending in _WRAPPERS:
        inner = text.removeprefix(opening)
        if text.endswith(ending) and inner != text and len(inner) > len(ending):
            inner = inner.removesuffix(ending)
            bare = inner.replace(r"\$", "")
            if opening not in bare and ending not in bare:
                return _unwrapped(inner.strip())
    return text


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

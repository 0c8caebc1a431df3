"""Converts Unicode symbols to LaTeX, and digits in any script to 0-9."""

from __future__ import annotations

import re
import unicodedata

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

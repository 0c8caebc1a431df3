"""Counts words and upper-case words."""

from __future__ import annotations

import re
from unicodedata import category

_WORD = re.compile(r"\w+")
_SIGNS = re.compile(r"[^\w\s\x00-\u02ff]+")
_MARKS = {"Mn", "Mc", "Me"}
_JOINERS = "\u200c\u200d"
_BETWEEN_WORDS = re.compile(r"[\s;@#$%&?!*`\"“”«»„‘’()\[\]{}<>\u2012-\u2015]+|[,:](?!\d)|--|''|\.{2,}")
_JOINT = re.compile(
    r"(?<=[^'])(?=(?:'[smd]|'ll|'re|'ve|n't)\.?$)"
    r"|(?<=\bcan)(?=not\b)|(?<=\bgim)(?=me\b)|(?<=\bgon)(?=na\b)|(?<=\bgot)(?=ta\b)|(?<=\blem)(?=me\b)|(?<=\bwan)(?=na$)",
    re.IGNORECASE,
)


def word_count(text: str) -> int:
    """Count runs of letters, digits and underscores. Combining marks, such as vowel signs and accents, do not split a
    word.
    """
    return len(_WORD.findall(_SIGNS.sub(_without_marks, text)))


def words_in_capitals(text: str) -> int:
    """Count words without lower-case letters. Words are split as in the Penn Treebank: `DON'T` and `CANNOT` are two
    words each, `HI-FI` is one.
    """
    words = (word for word in _BETWEEN_WORDS.split(text) if word != word.lower())
    return sum(part.isupper() for word in words for part in _JOINT.split(word))


def _without_marks(signs: re.Match[str]) -> str:
    return "".join(sign for sign in signs.group() if sign not in _JOINERS and category(sign) not in _MARKS)

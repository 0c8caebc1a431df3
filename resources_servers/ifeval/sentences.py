"""The sentences of a text by NLTK's Punkt (Kiss and Strunk, 2006), the splitter of IFEval's own checker.

Only the algorithm is NLTK's. The parameters that it learnt from newspapers are a download, so ours are in
`abbreviations.py`: they hold for every machine, and they know `e.g.`, `Gov.` and `No. 5`, which the learnt ones do not.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from rollyard.resources_servers.ifeval.abbreviations import ABBREVIATIONS, BEFORE_NUMBERS, COMMON_WORDS

_WORD = re.compile(r"\w")
# `1.`, `- **2.3.**` and `a)` before the text of a list's item; possessive, so that a line is read once.
_LABEL = re.compile(r"^[ \t>*_#+-]*+(?:\d{1,9}(?:\.\d{1,9}){0,9}+|[^\W\d_])[.)][.)*_]*+(?=[ \t]+\S)", re.MULTILINE)
_EMPHASIS_BEHIND_AN_END = re.compile(r"(?<=[.!?])[*_]++")
# A run of them is one end: each costs Punkt as much as a sentence.
_OTHER_ENDS = re.compile(r"[。।！？]++")


@lru_cache(maxsize=16)  # a prompt may set two limits
def sentence_count(text: str) -> int:
    """How many sentences `text` has."""
    return len(sentences(text))


def sentences(text: str) -> list[str]:
    """The sentences of `text`, without labels of list items and without pieces that have no letter or digit."""
    plain = _EMPHASIS_BEHIND_AN_END.sub("", _LABEL.sub("", _OTHER_ENDS.sub("! ", text)))
    return [piece for piece in _punkt().tokenize(plain) if _WORD.search(piece)]


@lru_cache(maxsize=1)
def _punkt() -> Any:
    from nltk.tokenize.punkt import (  # type: ignore[import-untyped]
        _ORTHO_BEG_UC,
        _ORTHO_MID_LC,
        PunktParameters,
        PunktSentenceTokenizer,
    )

    known = PunktParameters()
    known.abbrev_types = ABBREVIATIONS
    known.collocations = {(word, "##number##") for word in BEFORE_NUMBERS}
    for word in COMMON_WORDS:
        known.ortho_context[word] = _ORTHO_BEG_UC | _ORTHO_MID_LC
    return PunktSentenceTokenizer(known)

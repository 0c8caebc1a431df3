"""Splits text into sentences with NLTK's Punkt (Kiss and Strunk, 2006), which IFEval's original checker uses.

Only the algorithm comes from NLTK. Its trained parameters are a separate download, so `abbreviations.py` provides the
parameters instead. They are the same on every host, and include `e.g.`, `Gov.` and `No. 5`, which the trained ones
lack.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from rollyard.resources_servers.ifeval.abbreviations import ABBREVIATIONS, BEFORE_NUMBERS, COMMON_WORDS

_WORD = re.compile(r"\w")
# `1.`, `- **2.3.**` and `a)` before the text of a list item; possessive, so that each line is scanned once.
_LABEL = re.compile(r"^[ \t>*_#+-]*+(?:\d{1,9}(?:\.\d{1,9}){0,9}+|[^\W\d_])[.)][.)*_]*+(?=[ \t]+\S)", re.MULTILINE)
_EMPHASIS_AFTER_END = re.compile(r"(?<=[.!?])[*_]++")
# A run of these counts as a single end, because Punkt would spend as much time on each of them as on a sentence.
_OTHER_ENDS = re.compile(r"[。।！？]++")


@lru_cache(maxsize=16)  # a prompt may limit the number of sentences twice
def sentence_count(text: str) -> int:
    return len(sentences(text))


def sentences(text: str) -> list[str]:
    """Split `text` into sentences. List labels and parts without a letter or digit are dropped."""
    plain = _EMPHASIS_AFTER_END.sub("", _LABEL.sub("", _OTHER_ENDS.sub("! ", text)))
    return [piece for piece in _punkt().tokenize(plain) if _WORD.search(piece)]


@lru_cache(maxsize=1)
def _punkt() -> Any:
    from nltk.tokenize.punkt import (  # type: ignore[import-untyped]
        _ORTHO_BEG_UC,
        _ORTHO_MID_LC,
        PunktParameters,
        PunktSentenceTokenizer,
    )

    parameters = PunktParameters()
    parameters.abbrev_types = ABBREVIATIONS
    parameters.collocations = {(word, "##number##") for word in BEFORE_NUMBERS}
    for word in COMMON_WORDS:
        parameters.ortho_context[word] = _ORTHO_BEG_UC | _ORTHO_MID_LC
    return PunktSentenceTokenizer(parameters)

"""Splits text into sentences with NLTK's Punkt (Kiss and Strunk, 2006), which IFEval's original checker uses.

Only the algorithm comes from NLTK. Its trained parameters are a separate download, so this module provides the
parameters instead. They are the same on every host, and include `e.g.`, `Gov.` and `No. 5`, which the trained ones
lack.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_WORD = re.compile(r"\w")
# `1.`, `- **2.3.**` and `a)` before the text of a list item; possessive, so that each line is scanned once.
_LABEL = re.compile(r"^[ \t>*_#+-]*+(?:\d{1,9}(?:\.\d{1,9}){0,9}|[^\W\d_])[.)][.)*_]*+(?=[ \t]+\S)", re.MULTILINE)
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


_TITLES = """
mr mrs ms mx messrs dr drs prof fr br st sts mt ft gen brig col lt maj capt cmdr sgt cpl pvt adm gov lt.gov sen sens
rep reps rev hon pres supt atty jr sr bros
"""
_COMPANIES = "co corp inc ltd cie assn dept univ est"
# Without `mar`, `sat` and `sun`, which are also words that end sentences.
_DATES = "jan feb apr aug sep sept oct nov dec mon tue tues wed thu thur thurs fri"
# Without `me`, `mass`, `miss`, `ark` and others that are also words.
_PLACES = """
ala ariz calif colo conn fla ga kan ky minn mich mont neb nev okla ore pa penn tenn tex va vt w.va wis wyo ave blvd
"""
_DEGREES = "ph.d ed.d ll.d ll.m"
_OTHERS = "vs approx al etc viz cf ca eds esp incl excl misc tel hwy bldg"
_DOTTED = re.compile(r"[^\W\d_](?:\.[^\W\d_])+")


class Abbreviations(set[str]):
    """Also contains all single letters separated by periods: `u.s`, `a.m`, `d.c`, `e.g`, `n.a.s.a`."""

    def __contains__(self, word: object) -> bool:
        return super().__contains__(word) or (isinstance(word, str) and _DOTTED.fullmatch(word) is not None)


ABBREVIATIONS = Abbreviations(" ".join((_TITLES, _COMPANIES, _DATES, _PLACES, _DEGREES, _OTHERS)).split())

_BEFORE_NUMBERS = "art ch chap eq ex fig figs jul jun mar no nos p par pp ref sec tab vol vols"
BEFORE_NUMBERS = frozenset(_BEFORE_NUMBERS.split())
"""Words that are abbreviations only before a number: `No. 5`, but `The answer is no.`"""

_COMMON_WORDS = """
a about above according after again all also although am among an and another any are as at be because been before
being below between both but by can could did do does during each either even every few finally first for from further
furthermore had has have he hence her here his how however i if in indeed instead into is it its just last later let
like many may maybe me meanwhile more moreover most much must my near neither never nevertheless next no nonetheless
nor not nothing now of often on once one only or other our out over perhaps please second several she should similarly
since so some someone something sometimes soon still such than that the their them then there therefore these they
this those though through thus to today together tomorrow too two under unlike until up upon us very was we were what
when where whether which while who whose why will with within without would yes yesterday yet you your
"""
COMMON_WORDS = frozenset(_COMMON_WORDS.split())
"""Words that are written in lower case within a sentence. One that is capitalized after an abbreviation starts a
sentence."""

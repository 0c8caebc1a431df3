"""Counting sentences and words, without a model that would have to be downloaded."""

from __future__ import annotations

import re

_ABBREVIATIONS = frozenset({
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "vs", "etc", "inc", "ltd", "co", "corp", "no", "vol", "fig",
    "al", "approx", "dept", "est", "gen", "gov", "hon", "lt", "col", "maj", "capt", "rev", "sen", "rep", "jan",
    "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec", "mon", "tue", "wed", "thu", "fri",
    "sat", "sun", "e.g", "i.e", "a.m", "p.m", "u.s", "u.k", "u.n", "ph.d", "p.s", "p.p.s", "cf", "eds", "ed", "pp",
})  # fmt: skip
LONGEST_WORD = 40
"""Characters around a dot that decide over it."""
_END = re.compile(r"[.!?…。！？।]+[\"'”’)\]*_]*(?=\s|$)|[。！？।]+")
_LAST_WORD = re.compile(r"[^\s\"'“‘(\[*_]+$")
_ALWAYS_GOES_ON = frozenset({"mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "fig", "no", "vol", "approx"})
_WORD = re.compile(r"\w+")
_EDGES = "\"'`“”‘’()[]{}<>*_.,;:!?…#|~"
_CONTRACTION = re.compile(r"^(.+?)(n[’']t|[’'](?:s|m|d|re|ve|ll))$", re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """The sentences of `text`; a line's own number (`1.`) is none."""
    found, start = [], 0
    for match in _END.finditer(text):
        if _goes_on(text, start, match):
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    rest = text[start:].strip()
    return [sentence for sentence in [*found, rest] if _WORD.search(sentence)]


def word_count(text: str) -> int:
    """Runs of letters, digits and underscores."""
    return len(_WORD.findall(text))


def tokens(text: str) -> list[str]:
    """Words without the punctuation around them, `DON'T` as two: for counting words in capitals."""
    words = (token.strip(_EDGES) for token in text.split())
    return [part for word in words if word for part in _parts(word)]


def _parts(word: str) -> tuple[str, ...]:
    split = _CONTRACTION.match(word)
    return (split[1], split[2]) if split else (word,)


def _goes_on(text: str, start: int, end: re.Match[str]) -> bool:
    """True when the dot belongs to an abbreviation, an initial or a list's number."""
    following = text[end.end() : end.end() + LONGEST_WORD].lstrip()[:1]
    if not end.group().startswith(".") or end.group().startswith(".."):
        return end.group().startswith("..") and following.islower()
    last = _LAST_WORD.search(text, max(start, end.start() - LONGEST_WORD), end.start())
    word = last.group().lower() if last else ""
    if word.isdecimal() and not text[start : end.start() - len(word)].rpartition("\n")[2].strip():
        return True
    if word in _ALWAYS_GOES_ON or (len(word) == 1 and word.isalpha() and word != "i"):
        return True
    return word in _ABBREVIATIONS and (following.islower() or following.isdecimal() or following == ",")

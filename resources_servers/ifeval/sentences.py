"""The sentences of a text, without a model that would have to be downloaded."""

from __future__ import annotations

import re
from functools import lru_cache

_TITLES = frozenset({"mr", "mrs", "ms", "dr", "prof", "vs", "e.g", "i.e"})
_BEFORE_NUMBERS = frozenset({"no", "nos", "fig", "vol", "approx", "ca", "p", "pp"})
_ABBREVIATIONS = frozenset({
    "st", "sr", "jr", "etc", "inc", "ltd", "co", "corp", "al", "dept", "est", "gen", "gov", "hon", "lt", "col", "maj",
    "capt", "rev", "sen", "rep", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
    "mon", "tue", "wed", "thu", "fri", "sat", "sun", "a.m", "p.m", "u.s", "u.k", "u.n", "ph.d", "p.s", "p.p.s", "cf",
    "eds", "ed",
})  # fmt: skip
_BEGINNINGS = frozenset({
    "a", "after", "all", "also", "an", "and", "as", "at", "because", "but", "each", "every", "finally", "first", "for",
    "he", "hence", "her", "here", "his", "how", "however", "i", "if", "in", "is", "it", "its", "let", "my", "no", "not",
    "now", "on", "our", "she", "since", "so", "that", "the", "their", "then", "there", "therefore", "these", "they",
    "this", "those", "thus", "to", "we", "what", "when", "where", "which", "while", "who", "why", "with", "you", "your",
})  # fmt: skip
"""Words that begin a sentence behind a letter: `vitamin C. It helps`, but `J. Smith`."""
LONGEST_WORD = 40
"""Characters around a dot that decide over it."""
# A run of marks is tried from its first only: a text of dots would be searched to its end from each.
_END = re.compile(r"(?<![.!?…。！？।])[.!?…。！？।]++[\"'”’)\]*_]*+(?=\s|$)|[。！？।]++")
_PART_OF_A_WORD = re.compile(r"[^\s\"'“‘(\[*_]+")
_WORD = re.compile(r"\w+")
_MARKUP = " \t\r*_#>(-+"


@lru_cache(maxsize=16)  # a prompt may set two limits
def sentence_count(text: str) -> int:
    """How many sentences `text` has."""
    return len(sentences(text))


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


def _goes_on(text: str, start: int, end: re.Match[str]) -> bool:
    """True when what looks like a sentence's end is none: an abbreviation, an initial, a list's number, an ellipsis."""
    behind = text[end.end() : end.end() + LONGEST_WORD]
    following = behind.lstrip()[:1]
    if end.group().startswith(("..", "…")):
        return following.islower()
    if not end.group().startswith("."):
        return False
    # Turned around: a search for a word before the dot would begin at every character.
    last = _PART_OF_A_WORD.match(text[max(start, end.start() - LONGEST_WORD) : end.start()][::-1])
    word = last.group()[::-1] if last else ""
    if word.lower() in _TITLES or (word.lower() in _BEFORE_NUMBERS and following.isdecimal()):
        return True
    if word.replace(".", "").isdecimal() or (len(word) == 1 and word.isalpha()):
        if following.islower() or _initial(word, behind):
            return True
        return _begins_its_line(text, start, end.start() - len(word)) and behind.partition("\n")[0].strip() != ""
    return word.lower() in _ABBREVIATIONS and (following.islower() or following.isdecimal() or following == ",")


def _begins_its_line(text: str, start: int, place: int) -> bool:
    """True when there are only blanks and marks of Markdown between the line's beginning and `place`."""
    return not text[max(start, place - LONGEST_WORD) : place].rpartition("\n")[2].strip(_MARKUP)


def _initial(word: str, behind: str) -> bool:
    """True for the J of `J. Smith`."""
    if not word.isupper() or word == "I":
        return False
    name = _WORD.search(behind)
    return name is not None and name.group().lower() not in _BEGINNINGS and "\n" not in behind[: name.start()]

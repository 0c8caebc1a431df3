r"""Removes harmless words around a number: `18 \text{ eggs}` is 18; `\text{half of } 18`, `\text{maybe } 18` are not.

Allowed are units of measure, common nouns and words of the problem. Any other word makes the answer wrong.
"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import normalized
from rollyard.resources_servers.answers.problem_statement import Problem
from rollyard.resources_servers.answers.vocabulary import CHANGING, SCALES, is_common, is_unit, stems, word_set

_CHUNK = re.compile(
    r"""(?P<skip>\\(?:begin|end)\s*\{[^{}]*\}|_\s*\{(?:[^{}]|\{[^{}]*\})*\}|_\s*\\text\s*\{[^{}]*\}
      |\\(?!text(?![a-zA-Z]))[a-zA-Z]+(?:\s*\{[A-Z]{1,5}\})?)
    |\\text\s*\{(?P<text>[^{}]*)\}
    |(?<=[\d}][ ])(?P<foreign>[^\W\da-zA-Z_]+)(?=[ .]*$)
    |(?P<bare>(?:\b[aA][ ]+)?[a-zA-Z]{2,}(?:['-][a-zA-Z]{2,})*(?:[ ]+[a-zA-Z]{2,}(?:['-][a-zA-Z]{2,})*)*)""",
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W\d_]+(?:['.-][^\W\d_]+)*")
_JOINING = frozenset({"and", "or"})
_POWERS = frozenset({"square", "sq", "cubic", "squared", "cubed"})
_APPROXIMATE = frozenset({"about", "around", "approximately", "approximate", "approx", "roughly"})
_NEGATIVE = re.compile(
    r"(?:\\text\s*\{\s*(?:negative|minus)\s*\}|\b(?:negative|minus)\b)\s*(?=[\d\\.$])", re.IGNORECASE
)


_BEFORE_NUMBER = re.compile(r"\s*(?:[\d$.(-]|\\(?:frac|sqrt|pi))")
_LEADING = word_set(
    """
    the a an is are so it its he she they there has have will be total of value final result answer exactly just only
    precisely and or
    """
)


class UnknownWord(ValueError):
    """The answer contains a word that may change its value."""


def without_words(gold: str, answer: str, problem: Problem) -> str:
    """Return `answer` without harmless words; units, `and` and `or` are kept. Raises UnknownWord."""
    answer = _NEGATIVE.sub("-", answer)
    known = frozenset(word.casefold() for word in _WORD.findall(gold))
    symbolic = re.search(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", re.sub(r"\\text\s*\{[^{}]*\}", "", gold)) is not None

    def kept(match: re.Match[str]) -> str:
        if match["skip"]:
            return match[0]
        if match["bare"] is not None and _is_formula(match["bare"], known, symbolic, problem):
            return match[0]
        spoken = match["text"] if match["text"] is not None else match["bare"] or match["foreign"]
        if _BEFORE_NUMBER.match(answer, match.end()) and (word := _leading(spoken, known, problem)) is not None:
            raise UnknownWord(word)
        left = _kept(spoken, known, problem)
        if (
            not left
            and re.search(r"\d\s*$", answer[: match.start()])
            and re.match(r"\s*[\d\\(]", answer[match.end() :])
        ):
            raise UnknownWord(match[0].strip())
        return left

    return normalized(_CHUNK.sub(kept, answer))


def _leading(text: str, known: frozenset[str], problem: Problem) -> str | None:
    """Return the first word that may not precede a number, as in `multiple of 5`; None if there is none."""
    word: str
    for word in _WORD.findall(text):
        lower = word.casefold()
        if not (lower in _LEADING or lower in known or is_unit(word) or (lower in _APPROXIMATE and problem.rounds)):
            return word
    return None


def _is_formula(run: str, known: frozenset[str], symbolic: bool, problem: Problem) -> bool:
    """Return whether letters outside `\\text` are a product of variables or a pair of points instead of words."""
    if " " in run:
        return all(_is_formula(word, known, symbolic, problem) for word in run.split())
    if run.isupper() or run.casefold() in known:
        return True
    return len(run) <= 3 and (symbolic or not _is_word(run, problem))


def _is_word(run: str, problem: Problem) -> bool:
    word = run.casefold()
    return (
        word in _JOINING
        or word in CHANGING
        or word in problem.words
        or word in SCALES
        or is_unit(word)
        or is_common(word)
    )


def _kept(text: str, known: frozenset[str], problem: Problem) -> str:
    """Return the part of a run of words that is kept. Raises UnknownWord."""
    if not _WORD.search(text):
        return text
    spoken = _WORD.findall(text)
    lone = text.strip()
    if spoken == [lone] and lone.isascii() and ((lone.isupper() and len(lone) <= 5) or _is_symbol(lone)):
        return lone  # \text{i}, \mathrm{AB}
    for place, word in enumerate(spoken):
        if not _is_allowed(word.casefold(), spoken, place, known, problem):
            raise UnknownWord(word)
    joined = {word.casefold() for word in spoken} & _JOINING
    if joined:
        if len(spoken) > 1 and not re.search(r"\d", text):
            raise UnknownWord(" ".join(spoken))
        return rf"\text{{{text}}}"
    if any(word.casefold() in known for word in spoken) or re.search(r"[\d:%$]", text):
        return rf"\text{{{text}}}" if _is_plain(spoken) else _without(text)
    return rf"\text{{ {' '.join(measured)}}}" if (measured := _measured(spoken, problem)) else ""


def _is_symbol(word: str) -> bool:
    return len(word) == 1 and not is_unit(word)


def _is_plain(spoken: list[str]) -> bool:
    """Return whether every word is a unit of measure or a factor."""
    return all(is_unit(word) or word.casefold() in SCALES or word.casefold() == "per" for word in spoken)


def _without(text: str) -> str:
    spoken = _WORD.findall(text)
    return _WORD.sub(lambda match: match[0] if is_unit(match[0]) or _is_plain(spoken) else "", text)


def _measured(spoken: list[str], problem: Problem) -> list[str]:
    """Return the unit at the start of the words: `dollars` for `dollars for eggs`; empty for `eggs per day`."""
    taken: list[str] = []
    for word in spoken:
        lower = word.casefold()
        if stems(word) & problem.counted and lower in CHANGING:
            break
        if not (is_unit(word) or lower.removesuffix("s") in SCALES):
            break
        taken.append(word)
    return taken if taken and taken[0].casefold() not in ("per", "each", "every", "a", "an") else []


def _is_allowed(word: str, spoken: list[str], place: int, known: frozenset[str], problem: Problem) -> bool:
    if word in known or word in _JOINING:
        return True
    if word in _POWERS:
        beside = spoken[max(place - 1, 0) : place + 2]
        return any(is_unit(other) and other.casefold() not in _POWERS for other in beside)
    if word in _APPROXIMATE:
        return problem.rounds
    forms = stems(word)
    if forms & {stem for counted in problem.counted for stem in stems(counted)}:
        return "than" not in spoken
    if word.removesuffix("s") in SCALES:
        return all(other.casefold().removesuffix("s") in SCALES for other in spoken[:place])
    if is_unit(word) or is_common(word):
        return True
    return not forms & CHANGING and any(forms & stems(other) for other in problem.words)

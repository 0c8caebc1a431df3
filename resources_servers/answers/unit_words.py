r"""Removes harmless words around a number: `18 \text{ eggs}` means 18, but `\text{half of } 18` and `\text{maybe } 18`
do not.

Units of measure, common nouns and words from the problem are harmless. Any other word makes the answer wrong.
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
_POWERS = frozenset({"square", "sq", "cubic", "squared", "cubed", "fl", "fluid"})
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
    """Raised for a word in the answer that may change its value."""


def without_words(gold: str, answer: str, problem: Problem) -> str:
    """Return `answer` without harmless words. Units, `and` and `or` are kept. Raises UnknownWord for any other word."""
    answer = _NEGATIVE.sub("-", answer)
    known = frozenset(word.casefold() for word in _WORD.findall(gold))
    symbolic = re.search(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", re.sub(r"\\text\s*\{[^{}]*\}", "", gold)) is not None

    def kept(match: re.Match[str]) -> str:
        if match["skip"]:
            return match[0]
        if match["bare"] is not None and _is_formula(match["bare"], known, symbolic, problem):
            return match[0]
        words = match["text"] if match["text"] is not None else match["bare"] or match["foreign"]
        if _BEFORE_NUMBER.match(answer, match.end()) and (word := _leading(words, known, problem)) is not None:
            raise UnknownWord(word)
        left = _kept(words, known, problem)
        if (
            not left
            and re.search(r"\d\s*$", answer[: match.start()])
            and re.match(r"\s*[\d\\(]", answer[match.end() :])
        ):
            raise UnknownWord(match[0].strip())
        return left

    return normalized(_CHUNK.sub(kept, answer))


def _leading(text: str, known: frozenset[str], problem: Problem) -> str | None:
    """Return the first word that must not precede a number, such as `multiple` in `multiple of 5`, or None."""
    word: str
    for word in _WORD.findall(text):
        lower = word.casefold()
        if not (lower in _LEADING or lower in known or is_unit(word) or (lower in _APPROXIMATE and problem.rounds)):
            return word
    return None


def _is_formula(run: str, known: frozenset[str], symbolic: bool, problem: Problem) -> bool:
    r"""Return whether letters outside `\text` stand for a product of variables or a pair of points, not for words."""
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
    """Return the part of `text` that must be kept. Raises UnknownWord for a word that may change the value."""
    if not _WORD.search(text):
        return text
    words = _WORD.findall(text)
    lone = text.strip()
    if words == [lone] and len(lone) == 1 and lone.casefold() in known:
        return lone
    if (lone == "L" and not {"L", "l"} & problem.variables) or (len(lone) > 1 and lone.isupper() and is_unit(lone)):
        return rf"\text{{ {lone.casefold()}}}"
    if words == [lone] and lone.isascii() and ((lone.isupper() and len(lone) <= 5) or _is_symbol(lone)):
        return lone  # \text{i}, \mathrm{AB}
    for position, word in enumerate(words):
        if not _is_allowed(word.casefold(), words, position, known, problem):
            raise UnknownWord(word)
    joined = {word.casefold() for word in words} & _JOINING
    if joined:
        if len(words) > 1 and not re.search(r"\d", text):
            raise UnknownWord(" ".join(words))
        return rf"\text{{{text}}}"
    if any(word.casefold() in known for word in words) or re.search(r"[\d:%$]", text):
        return rf"\text{{{text}}}" if _is_plain(words) else _without(text)
    return rf"\text{{ {' '.join(measured)}}}" if (measured := _measured(words, problem)) else ""


def _is_symbol(word: str) -> bool:
    return len(word) == 1 and not is_unit(word)


def _is_plain(words: list[str]) -> bool:
    """Return whether every word is a unit of measure or a factor such as `thousand`."""
    return all(is_unit(word) or word.casefold() in SCALES or word.casefold() == "per" for word in words)


def _without(text: str) -> str:
    words = _WORD.findall(text)
    return _WORD.sub(lambda match: match[0] if is_unit(match[0]) or _is_plain(words) else "", text)


def _measured(words: list[str], problem: Problem) -> list[str]:
    """Return the unit at the start of the words: `dollars` for `dollars for eggs`, but nothing for `eggs per day`."""
    taken: list[str] = []
    for word in words:
        lower = word.casefold()
        if stems(word) & problem.counted and lower in CHANGING:
            break
        if not (is_unit(word) or lower.removesuffix("s") in SCALES):
            break
        taken.append(word)
    return taken if taken and taken[0].casefold() not in ("per", "each", "every", "a", "an") else []


def _is_allowed(word: str, words: list[str], position: int, known: frozenset[str], problem: Problem) -> bool:
    if word in known or word in _JOINING:
        return True
    if word in _POWERS:
        beside = words[max(position - 1, 0) : position + 2]
        return any(is_unit(other) and other.casefold() not in _POWERS for other in beside)
    if word in _APPROXIMATE:
        return problem.rounds
    forms = stems(word)
    if forms & {stem for counted in problem.counted for stem in stems(counted)}:
        return "than" not in words
    if word.removesuffix("s") in SCALES:
        return all(other.casefold().removesuffix("s") in SCALES for other in words[:position])
    if is_unit(word) or is_common(word):
        return True
    return not forms & CHANGING and any(forms & stems(other) for other in problem.words)

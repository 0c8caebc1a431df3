r"""Finds alternatives that a text offers after its answer: `\boxed{5} or 6`, `The answer is 5. It could also be 6.`

An answer with an alternative is correct only if both values are correct.
"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.choices import choice
from rollyard.resources_servers.answers.latex import plain_spelling, words
from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.answers.reading.adjacent_values import together
from rollyard.resources_servers.answers.reading.answer_phrases import phrased
from rollyard.resources_servers.answers.reading.extraction import Found
from rollyard.resources_servers.answers.reading.sentence_values import bare_value, is_value, sentence, values
from rollyard.resources_servers.answers.reading.tags import hashes
from rollyard.resources_servers.answers.splitting import parts

_NEAR = 150
"""Maximum distance between an answer and an alternative, in characters."""
_OR = re.compile(
    r"(?:[\s$.*)]|\\[)\]])*[(,;]?\s*(?:but\s+)?(?:(?:or|maybe|perhaps|possibly|alternatively|或者?)(?![\w=]),?"
    r"|(?:it|the answer|this)\s+(?:could|might|may)\s+(?:also\s+|even\s+)?be\b)\s*(?=\S)",
    re.IGNORECASE,
)
_MARKED = frozenset(("boxed", "answer_tag", "final_answer", "hashes"))
"""Methods that find an answer which the text marks as final. Another final answer after it contradicts it."""
_SOLUTION = re.compile(
    r"\bthe (?:final )?(?:solution|value|result|total) (?:is|equals)\b:? *(?=[-$\\\d(*]|[a-zA-Z] *=)", re.IGNORECASE
)
_SOLUTIONS = re.compile(r"\bsolutions\b", re.IGNORECASE)
"""Matches `The solutions are`, which may explain an answer that counts or adds them."""
_CORRECTED = re.compile(
    r"\bnot\b[^.!?\n]{1,60}?,? but(?: (?:rather|actually|it is))? +(?=[-$\\\d(*]|[A-Z]\b)", re.IGNORECASE
)
_COMMENT = re.compile(
    r"\b(?:in|as|that|this|is|are|was|well|correct|right|wrong|reasonable|consistent|valid|unique|clear|obvious|above|below"
    r"|boxed|simple|complete|final|indeed|exact|confirmed|verified|only|now|then|the|it|we|therefore)\b"
)
_DIGIT = re.compile(r"\d")
_SYMBOL = re.compile(r"\\(?:sqrt|pi)(?![a-z])|(?<![a-zA-Z\\])[a-z](?![a-zA-Z])")
_FORMULA = re.compile(r"\d|\\[a-zA-Z]|[=^+]|[a-z]\b")
_AND = re.compile(r"(?:[\s$*]|\\[)\]])*and\s+(?=\$?-?\d[\d.,/]*\$?\s*$)")


def with_alternatives(text: str, found: Found) -> Found:
    """Return the answer `found` together with the alternatives that `text` offers after it."""
    offered = _offered(text, found.end) or (_announced(text, found) if found.method in _MARKED else [])
    return together(found, [*(found.parts or (found.text,)), *offered]) if offered else found


def _offered(text: str, end: int) -> list[str]:
    match = _OR.match(text, end, end + _NEAR) or _AND.match(text, end, end + _NEAR)
    if match is None:
        return []
    named = values(sentence(text, match.end())[0])
    return [bare_value(each) for each in named] if is_value(named[0]) else []


def _announced(text: str, found: Found) -> list[str]:
    """Return the values that the text after the answer announces as its final answer, unless they are the same or not
    of its kind: `The answer is correct.` after a number announces nothing.
    """
    rest = text[found.end :]
    if not rest.strip():
        return []
    announced = [
        each.text
        for each in (phrased(rest), hashes(rest))
        if each is not None and not _SOLUTIONS.search(rest, max(each.end - len(each.text) - _NEAR, 0), each.end)
    ]
    announced += [sentence(rest, match.end())[0] for match in (*_SOLUTION.finditer(rest), *_CORRECTED.finditer(rest))]
    named = [bare_value(value) for each in announced for value in values(each)]
    return [other for other in named if other and _differs(found.text, other)]


def _differs(answer: str, other: str) -> bool:
    """Return whether `other` is a value of the same kind as `answer`, in another spelling or of another value."""
    if plain_spelling(answer) == plain_spelling(other):
        return False
    number = quantity(answer, any_words=True)
    if number is not None:
        other = other if "=" in answer else other.rpartition("=")[2]
        read = quantity(other, any_words=True)
        if read is None:
            several = sum(bool(_DIGIT.search(part)) for part in parts(other.strip("()[]{}\\ "))) > 1
            return is_value(other) and (several or (_DIGIT.search(other) and _SYMBOL.search(other)) is not None)
        scale = 1 if read.percent == number.percent else 100
        return read.value not in (number.value, number.value * scale, number.value / scale)
    chosen, given = words(answer), words(other)
    if choice(answer) is not None or (chosen is not None and len(chosen) == 1):
        letter = choice(other) or choice(other.partition(" ")[0])
        return letter is not None and letter[0].casefold() != (choice(answer) or (chosen or "",))[0].casefold()
    if chosen is not None:
        alike = given is not None and len(given.split()) <= len(chosen.split())
        return alike and given != chosen and not _COMMENT.search(given or "")
    return given is None and is_value(other) and bool(_FORMULA.search(other))

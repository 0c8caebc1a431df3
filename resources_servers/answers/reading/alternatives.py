r"""Finds alternatives that a text offers after its answer: `\boxed{5} or 6`, `The answer is 5. It could also be 6.`

An answer with an alternative is correct only if both values are correct.
"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.answers.reading.adjacent_values import together
from rollyard.resources_servers.answers.reading.answer_phrases import phrased
from rollyard.resources_servers.answers.reading.extraction import Found
from rollyard.resources_servers.answers.reading.sentence_values import bare_value, is_value, sentence, values

_NEAR = 150
"""Maximum distance between an answer and an alternative, in characters."""
_OR = re.compile(
    r"(?:[\s$.*)]|\\[)\]])*[(,;]?\s*(?:but\s+)?(?:(?:or|maybe|perhaps|possibly|alternatively|或者?)(?![\w=]),?"
    r"|(?:it|the answer|this)\s+(?:could|might|may)\s+(?:also\s+|even\s+)?be\b)\s*(?=\S)",
    re.IGNORECASE,
)
_AND = re.compile(r"(?:[\s$*]|\\[)\]])*and\s+(?=\$?-?\d[\d.,/]*\$?\s*$)")


def with_alternatives(text: str, found: Found) -> Found:
    """Return the answer `found` together with the alternatives that `text` offers after it."""
    offered = _offered(text, found.end) or (_announced(text, found) if found.method == "boxed" else [])
    return together(found, [*(found.parts or (found.text,)), *offered]) if offered else found


def _offered(text: str, end: int) -> list[str]:
    match = _OR.match(text, end, end + _NEAR) or _AND.match(text, end, end + _NEAR)
    if match is None:
        return []
    named = values(sentence(text, match.end())[0])
    return [bare_value(each) for each in named] if is_value(named[0]) else []


def _announced(text: str, box: Found) -> list[str]:
    """Return the number that a phrase after the box gives as the answer, if it differs from the boxed number."""
    number, later = quantity(box.text), phrased(text[box.end :])
    if number is None or later is None:
        return []
    other = bare_value(values(later.text)[0])
    read = quantity(other)
    return [other] if read is not None and read.value != number.value and read.percent == number.percent else []

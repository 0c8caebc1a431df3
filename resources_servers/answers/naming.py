r"""What may stand around an answer without belonging to it: `x =`, `The answer is`, `\pmod{23}`, `\{x \mid ...\}`."""

from __future__ import annotations

import re

from resources_servers.answers.latex import squeezed, tidied

_NAMED = re.compile(
    r"\s*((?:[a-zA-Z]|\\[a-z]+|\\text\s*\{[^{}]*\})(?:_(?:\{\w+\}|\w+))?(?:\([a-z]\))?)\s*(=|\\in(?![a-z]))\s*"
)
_ANNOUNCED = re.compile(r"(?:\\text\s*\{)?[a-zA-Z ]*\b(?:[aA]nswer|is|are)\b(?: is| are)?\s*:?\s*\}?\s*(?=.*\d)")
_CHAIN = re.compile(
    r"(?!.*(?:\\text|;|\b(?:or|and)\b))([a-zA-Z](?:_(?:\{\w+\}|\w))?) *=(?!.*\1 *=)[^<>,]*= *([^=<>,]+)"
)
"""One value in several steps, not several values of one name."""
_BUILT = re.compile(r"\\\{ *[a-zA-Z] *(?:\\in *\\mathbb *\{?R\}? *)?(?:\\mid|\\vert|:|\|) *(.+)\\\}")
_RESIDUE = re.compile(
    r"(?:[a-zA-Z] *\\equiv *)?(-?\d+) *(?:\(?\\pmod|\(?\\bmod|\\text *\{ *\(?mod *\}) *\{?\d+\}? *\)?"
)


def without_names(gold: str, answer: str) -> tuple[str, str]:
    r"""Both without `x =` or `x \in` where one of them leaves it away, or both have the same."""
    gold, answer = _bare(gold), _bare(answer)
    if (residue := _RESIDUE.fullmatch(answer)) and not _RESIDUE.fullmatch(gold):
        answer = residue[1]
    of_gold, of_answer = _NAMED.match(gold), _NAMED.match(answer)
    rests = [text[name.end() :] if name else text for text, name in ((gold, of_gold), (answer, of_answer))]
    if any(re.search(r"=|<|>|\\(?:le|ge|ne)(?![a-z])", rest) for rest in rests):
        return gold, answer
    if of_gold and of_answer and squeezed(of_gold[1]) != squeezed(of_answer[1]):
        return gold, answer
    # Several named values (`x = 1, y = 2`) keep their names.
    return (rests[0], rests[1]) if of_gold or of_answer else (gold, answer)


def _bare(text: str) -> str:
    """Without an announcement, of `x = 1 + 1 = 2` its ends, and of a set built from a condition that condition."""
    text = tidied(text)
    if announced := _ANNOUNCED.match(text):
        text = text[announced.end() :]
    if chain := _CHAIN.fullmatch(text):
        text = f"{chain[1]} = {chain[2]}"
    built = _BUILT.fullmatch(text)
    return built[1].strip() if built else text

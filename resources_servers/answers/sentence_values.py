"""Extracts the values that a sentence gives as its answer: `12, not 13` gives one, `18 (or maybe 19)` gives two.

A policy gains nothing by giving several values, because the grader compares each of them with the gold answer.
"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.extraction import MASK, formulas, masked

MAX_CHARACTERS = 2000
"""Maximum length of a sentence; the rest is ignored."""
_SENTENCE_END = re.compile(
    r"(?<!approx)(?<!i\.e)(?<!e\.g)\.(?=[*_\"'”)\]]{0,4}(?:\s|$))|[\n。！？।؟]|(?<!\d)．|</|[!?](?=[*_\"'”)\]]{0,4}\s+[A-Z])"
)
_JUNCTION = re.compile(
    rf"(?<![\w\\])(?:and/or|and|or|maybe|perhaps|possibly|alternatively|(?:could|might|may)(?: also)? be)(?![\w=])"
    rf"|;|,(?=\s*{MASK})|或者?|和|以及|または|또는"
    rf"|(?<=[\d{MASK}}}*]) ?\((?=-?[\d./{MASK}]{{1,99}}"
    r"(?: [^()]{0,40}\b(?:also|possible|alternative)\b[^()]{0,40})?\))"
    rf"|(?<=[\d{MASK}] )(?:y|o|e|et|ou|und|oder|и|или)(?= [-\d{MASK}])"
)
_REASON = re.compile(
    r"(?<![\w\\])(?:since|because|as|where|which|so|thus|given|rather than|instead of|due to|hence|when|if|not|for"
    r"|but(?! (?:it |also )?(?:maybe|perhaps|possibly|could|might|may)\b)|or (?:about|approximately|roughly|around))\b"
    r"|(?<=\s)[—–-](?=\s[^\W\d_]{3})|因为|而不是|不是"
)
"""Words that introduce a reason, a rounded value or an excluded value. The answer ends before them."""
_FILLER = re.compile(r"(?:[\s,;:]|\b(?:and|or|but|also|even|it|be|is|either|both|then|equivalently|just|simply)\b)*")
_VERB = re.compile(r"\b(?:is|are|was|were|has|have|had|be|we|it|he|she|they|then|so|can|will|makes?|gives?)\b")
_WORD = re.compile(r"(?<![\\a-zA-Z])[^\W\d_]{2,}")
_VALUE = re.compile(rf"[\d{MASK}\\]|^\W*[A-Z]\W*$|\([A-Z]\)|(?<![^\W\d_])[a-z] *=")
_OPENING = re.compile(r"^(?:(?:either|both|option|choice|letter) +(?=\(?[-$\\\dA-Z])|(?:so|thus|hence),? )", re.I)
_CLOSING = re.compile(
    r" is (?:(?:the|our|my) (?:\w+ )?answer|correct|right)[.!*]*$| (?:is|are) (?:also|another)\b.*$", re.I
)
_RELATION = re.compile(r"[<>≤≥∈∪]|\\(?:le|ge|leq|geq|in|cup)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|mbox|textbf|mathrm) *\{[^{}]*\}")
CHANGED = re.compile(
    r"\b(?:(?:between|minus|negative|at (?:least|most)|(?:more|less|fewer|greater) than|up to|neither|either)"
    r"|(?:half|twice|thrice|double|triple|a third|a quarter)(?: of)?(?: the)?"
    r"|(?:not|maybe|perhaps|possibly|one of)(?: \w+){0,2})"
    r"[\s$*(]*$",
    re.IGNORECASE,
)
"""Words directly before a number that change or negate its value."""
_SCALE = re.compile(
    r"[*_ ]{0,4}\b(squared|cubed|hundred|thousand|million|billion|trillion|dozen|lakh|crore|percent|factorial)s?\b",
    re.I,
)
_LEAD = re.compile(
    r"[^\d\\=(){}\[\]^+*/]*\b(?:is|are|be|was|were|equals?|equal to|(?:it|that)['’]s|has|have|gets?|makes?|exactly|just"
    r"|only|simply|about|approximately|roughly|option|choice|number|costs?|earns?|needs?|total of)\b:?"
    r" *(?=[-+$€£.\d(\\])",
    re.IGNORECASE,
)
_REMARK = re.compile(r"\s\([^()=]*=[^()]*\)$")


def sentence(text: str, start: int) -> tuple[str, int]:
    """Return the text from `start` to the end of the line or sentence, and its end position. Formulas are not split."""
    window = text[start : start + MAX_CHARACTERS]
    hidden = masked(window, list(formulas(window)))
    end = _SENTENCE_END.search(hidden)
    found = window[: end.start()] if end else window
    return undecorated(found), start + len(found.rstrip())


def undecorated(text: str) -> str:
    """Strip whitespace, Markdown emphasis and backticks from both ends of the text."""
    text = text.strip()
    while text and (bare := text.strip("*`").removeprefix("__").removesuffix("__").strip()) != text:
        text = bare
    return text


def values(answer: str) -> tuple[str, ...]:
    """Return the values in the text after `The answer is`, as written: at least one, which may be empty."""
    answer = _CLOSING.sub("", _OPENING.sub("", undecorated(answer[:MAX_CHARACTERS])))
    spans = list(formulas(answer))
    hidden = _TEXT.sub(lambda match: MASK * len(match.group()), masked(answer, spans))
    stop = next((match.start() for match in _REASON.finditer(hidden) if _VALUE.search(hidden[: match.start()])), None)
    answer, hidden = answer[:stop], hidden[:stop]
    ends = list(_JUNCTION.finditer(hidden))
    if ends and _RELATION.search(answer):  # `x < 2 or x > 3` is one set of numbers
        return (_trimmed(_undelimited(answer)),)
    starts, stops = [0, *(end.end() for end in ends)], [*(end.start() for end in ends), len(answer)]
    named = list[str]()
    for begin, end in zip(starts, stops, strict=True):
        piece, shape = answer[begin:end], hidden[begin:end]
        if not named and not _VALUE.search(shape):
            break  # words joined by `and` are one answer
        if named:
            begin = lead.end() if (lead := _FILLER.match(shape)) else 0
            piece, shape = _CLOSING.sub("", piece[begin:]), _CLOSING.sub("", shape[begin:])
            if not piece.strip(" ()"):
                continue
            if not is_value(shape):
                break
        named.append(_trimmed(piece))
    return tuple(named) if named else (_trimmed(answer),)


def is_value(shape: str) -> bool:
    """Return whether the text is a value with at most two words around it."""
    shape = masked(shape, list(formulas(shape)))
    return bool(_VALUE.search(shape)) and not _VERB.search(shape) and len(_WORD.findall(shape)) <= 2


def bare_value(piece: str) -> str:
    """Return the formula, or the text after the verb. Return `piece` itself if its words change the value."""
    spans = list(formulas(piece))
    if spans:
        first = spans[0]
        if CHANGED.search(piece[: first.start]):
            return piece
        scale = _SCALE.match(piece, first.end)
        return f"{first.text} \\text{{ {scale[1]}}}" if scale else first.text
    lead = _LEAD.match(piece)
    return piece[lead.end() :] if lead and not CHANGED.search(lead.group().rstrip()) else piece


def _undelimited(answer: str) -> str:
    """Remove the delimiters around formulas."""
    parts, position = list[str](), 0
    for formula in formulas(answer):
        parts += [answer[position : formula.start], formula.text]
        position = formula.end
    return "".join([*parts, answer[position:]])


def _trimmed(piece: str) -> str:
    """Strip trailing punctuation, a trailing remark in parentheses, and an unmatched parenthesis."""
    piece = _REMARK.sub("", undecorated(piece.strip().rstrip(" ,;:.")))
    more = sum(piece.count(sign) for sign in "([") - sum(piece.count(sign) for sign in ")]")
    if (more == 1 and piece.endswith("(")) or (more == -1 and piece.endswith(")")):
        piece = piece[:-1]
    return piece.rstrip(" ,;:").strip()

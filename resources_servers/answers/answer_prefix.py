r"""Strips text around an answer that is not part of its value: `x =`, `The answer is`, `\pmod{23}`, `\{x \mid ...\}`.

A left-hand side is removed only if it is a name or the requested quantity: `x = 7` means 7, but `-x = 7` and `x^2 = 7`
do not.
"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import normalized, plain_spelling, without_spaces
from rollyard.resources_servers.answers.problem_statement import Problem
from rollyard.resources_servers.answers.requested_value import is_requested, residue
from rollyard.resources_servers.answers.vocabulary import changes_numbers

_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi"
    r"|varphi|chi|psi|omega|ell|Delta|Gamma|Lambda|Omega|Phi|Psi|Sigma|Theta)(?![a-z])"
)
_LETTER = rf"(?:[a-zA-Z]|{_GREEK})"
_INDEX = r"(?:_(?:\{[\w, \\]+\}|\\text\s*\{[\w ]+\}|\w))"
_TEXT = r"\\text\s*\{[^{}]*\}"
_POINTS = r"[A-Z]{1,5}"
_NAME = re.compile(
    rf"""(?:
      (?:{_LETTER}|[A-Z]{{1,5}}|{_TEXT}){_INDEX}?                                           # x, x_1, AB, \text{{Area}}
    | {_LETTER}{_INDEX}?(?:\^\{{-1\}})?\((?:{_LETTER}|-?\d+)(?:,\s*(?:{_LETTER}|-?\d+))*\)  # f(x), f(3), f^{{-1}}(x)
    | (?:P|E|\\Pr|\\text\s*\{{[^{{}}]*\}}|\\mathbb\{{?[PE]\}}?)\s*[(\[][^()\[\]=<>]*[)\]]     # P(A), E[X]
    | m?\s*\\(?:angle|measuredangle|triangle)\s*(?:\{{?{_POINTS}\}}?|[a-z]|\d)
    | m?\s*\\(?:overline|overrightarrow|widehat|vec|hat|bar)\s*(?:\{{\s*(?:{_POINTS}|[a-z])\s*\}}|[a-z])
    | [\[|]\s*(?:{_POINTS}|\\overline\s*\{{{_POINTS}\}})\s*[\]|]                              # [ABC], |AB|
    | [a-zA-Z][a-zA-Z ]*\b                                                                 # Total cost
    )(?:\s*(?:{_TEXT}|\\triangle\s*|[A-Z]{{1,5}}+))*+""",
    re.VERBOSE,
)
_PLAIN_WORDS = re.compile(r"[a-zA-Z][a-zA-Z ]*")
_TUPLE = re.compile(rf"\(?\s*({_LETTER}{_INDEX}?(?:\s*,\s*{_LETTER}{_INDEX}?)+)\s*\)?")
_MAX_LENGTH = 120
_OF_NUMBER = re.compile(r".*\(-?\d.*\)")
_SUM = re.compile(r"[a-zA-Z](?:\+[a-zA-Z])+")
_PRODUCT = re.compile(r"[a-z]{2,4}")
_ANNOUNCED = re.compile(
    r"(?:\\text\s*\{)?\s*(?P<before>[a-zA-Z ]*?)"
    r"(?:\b(?:is|are|equals|equal to)\b(?! the answer)|\b[aA]nswer\b(?: is| are)?|:)\s*:?\s*\}?\s*(?=.*[\w\\])"
)
_SET_BUILDER = re.compile(r"\\\{ *[a-zA-Z] *(?:\\in *\\mathbb *\{?R\}? *)?(?:\\mid|\\vert|:|\|) *(.+)\\\}")
_REMARK = re.compile(
    r"\s*\(\s*(?:\\approx|\\text\s*\{\s*(?:about|approximately|approx\.?)\s*\}|about|approximately)\s*([^()]*)\)$"
)
_CONCLUSION = re.compile(
    r"^(?:.*\\(?:implies|Rightarrow|Longrightarrow|iff)(?![a-zA-Z])|\\therefore(?![a-zA-Z])"
    r"|(?:\\text\s*\{\s*)?(?:[tT]herefore|[tT]hus|[hH]ence|[sS]o)(?![a-zA-Z]),?\s*\}?)\s*(?=\S)"
)
_END_MARK = re.compile(r"(?:\s|\\checkmark|\\blacksquare|\\square|✓|✔|✅)+$")
_UNIT_IN_BRACKETS = re.compile(r"(?<=[\w}]) *\( *([a-zA-Z]{3,}(?: [a-zA-Z]+)*) *\)$")
_LABELLED = re.compile(r"\\text\s*\{\s*([a-zA-Z]\s*=\s*-?[\d./]+)\s*\}")
_EMPHASIS = re.compile(r"\\(?:underline|uline|emph|textup|texttt|mathtt|mathnormal|boxed|fbox)\s*\{(.*)\}")


def without_wrapping(text: str) -> str:
    """Remove introductory words such as `The answer is`. For a set in set-builder notation, return its condition."""
    text = _CONCLUSION.sub("", _END_MARK.sub("", normalized(text)))
    if emphasized := _EMPHASIS.fullmatch(text):
        text = normalized(emphasized[1])
    text = _LABELLED.sub(r"\1", text)
    text = _UNIT_IN_BRACKETS.sub(r" \\text{\1}", text)
    announced = _ANNOUNCED.match(text)
    if announced and not changes_numbers(announced["before"]):
        text = text[announced.end() :]
        if announced.group().count("{") > announced.group().count("}"):
            text = re.sub(r"\s*\}", "", text, count=1)
    if set_builder := _SET_BUILDER.fullmatch(text):
        text = set_builder[1].strip()
    return _REMARK.sub(r" \\approx \1", text)


def without_modulus(gold: str, answer: str, problem: Problem) -> str:
    r"""Reduce an answer such as `n \equiv 5 \pmod{23}` to `5`, unless the gold answer has a modulus."""
    found = None if residue(gold, Problem()) else residue(answer, problem)
    return answer if found is None else found[1]


def is_name(text: str, problem: Problem) -> bool:
    """Return whether `text` is a plain name or the quantity that the problem asks for."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        return False
    bare = plain_spelling(text)
    if not bare or is_requested(text, problem):
        return bool(bare)
    if (names := _TUPLE.fullmatch(text)) is not None:
        return _in_order(without_spaces(names[1]).split(","), problem)
    if _SUM.fullmatch(bare) or (_PRODUCT.fullmatch(text) and len(set(bare)) == len(bare)):
        return ("sum" if "+" in bare else "product") in problem.words and set(bare) - {"+"} <= _letters(problem)
    if _NAME.fullmatch(text) is None or changes_numbers(text):
        return False
    if _PLAIN_WORDS.fullmatch(text) and 1 < len(text) < 4 and not text.isupper():
        return False
    # `f(3)` is not a name if the problem contains it but asks for another value of `f`.
    return not (_OF_NUMBER.fullmatch(bare) and bare in problem.formulas)


def _in_order(names: list[str], problem: Problem) -> bool:
    listed = f"({','.join(names)})"
    return listed in problem.tuples or (names == sorted(names) and not _reordered(names, problem))


def _reordered(names: list[str], problem: Problem) -> bool:
    return any(sorted(other.strip("()").split(",")) == sorted(names) for other in problem.tuples)


def ordered_names(names: list[str], problem: Problem) -> list[str]:
    """Return the names in the order of a tuple in the problem, or in alphabetical order if no tuple contains them."""
    for other in problem.tuples:
        listed = other.strip("()").split(",")
        if sorted(listed) == sorted(names):
            return listed
    return sorted(names)


def _letters(problem: Problem) -> set[str]:
    return {letter for formula in problem.formulas for letter in re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]", formula)}

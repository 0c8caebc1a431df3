r"""Extracts the value that an answer claims, dropping names, introductory phrases, filler words and intermediate
steps.

`x = 7`, `The area is 7 \text{ cm}^2` and `14/2 = 7` claim 7. `x^2 = 7`, `x > 7`, `18 or 19` and `maybe 7` are rejected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from rollyard.resources_servers.answers import latex, vocabulary
from rollyard.resources_servers.answers.final_form import unfinished
from rollyard.resources_servers.answers.problem_statement import (
    ProblemStatement,
    is_other_quantity,
    is_requested,
    read_problem,
    residue,
)
from rollyard.resources_servers.answers.quantity import quantity, unit_of
from rollyard.resources_servers.answers.sets import same_vector, solved_set, with_usual_sets

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_AND = re.compile(r"\\text\s*\{[^{}]*\band\b[^{}]*\}|\band\b")
_OR = re.compile(r"\\text\s*\{[^{}]*\bor\b[^{}]*\}|\bor\b")
_VERDICTS = frozenset(("yes", "no", "true", "false"))
_DOUBT = re.compile(r"\b(?:yes|no|true|false|or|but|maybe|perhaps|possibly|if|unless|sometimes|except)\b")
_SUBJECT = r"(?:(?:it|this|[a-z]|the \w+) (?:is|are) )?(?:the )?"
_NAMED = re.compile(rf"{_SUBJECT}(?:an? )?(?P<word>\w+)(?: (?P<noun>\w+))?")
_LETTERED = re.compile(rf"{_SUBJECT}(?P<kind>[a-z]{{3,}}) (?P<letter>[a-z])")
_KINDS = vocabulary.word_set(
    "function graph figure statement diagram table curve line plan option choice answer point set number integer"
    " triangle sequence series angle matrix"
)
_NUMBER_IN_TEXT = re.compile(r"^\\text *\{ *([\d.,]+ *[a-zA-Z]) *\}$")
_ELLIPSIS = re.compile(r", *\\ldots")
_BARE_UNIT = re.compile(r"(?<=[\d}]) *([a-zA-Z])(\^\{?[23]\}?)?$")
_PARAMETER = re.compile(
    r"[,;]? *(?:\(? *([a-zA-Z]) *\\in *\\mathbb *\{? *Z *\}? *\)?"
    r"|\\text *\{[^{}]*\bintegers?\b[^{}]*\} *\(?([a-zA-Z])\)?"
    r"|\\text *\{ *(?:where|for|with)? *\} *([a-zA-Z]) *\\text *\{[^{}]*\bintegers?\b[^{}]*\})$"
)
_APPLIED = re.compile(r"[a-zA-Z]\([a-z]\)")
_UNKNOWN = re.compile(r"(?<![a-zA-Z\\])(?![ei](?![a-zA-Z]))[a-z](?![a-zA-Z])")
_APPROXIMATE = frozenset((r"\approx", r"\simeq"))
_ORDER = frozenset(("<", ">", r"\le", r"\ge", r"\ne", r"\equiv"))
_SEVERAL = re.compile(
    r"\\pm|\\mp|\\cup|\\emptyset|\\text|\\mathbb|<|>|\\[lg]e(?![a-z])|,|;|\bor\b|\band\b|\\infty|\\\{"
)
_LETTERS = re.compile(
    r"(?<![a-zA-Z\\])(?![ei](?![a-zA-Z]))[a-zA-Z]|\\(?:alpha|beta|theta|phi|lambda|mu|omega)(?![a-z])"
)
_ARITHMETIC = re.compile(r"(?:[\d.,+*/^(){}\s-]|\\(?:frac|cdot|times|div|sqrt)(?![a-z]))*\d(?:[\d.,+*/^(){}\s-])*")
_SCALED = re.compile(rf"\\text\s*\{{\s*({'|'.join(vocabulary.SCALES)})s?\b")
_SEMICOLON = re.compile(r"([\[(][^\[\](),;]+);([^\[\](),;]+[\])])")
_EITHER = re.compile(r"(?<=[)\]]) *\\text *\{ *or *\} *(?=[(\[])")
_POINT = re.compile(r"^[A-Z](?=\()")


class Refused(ValueError):
    """Raised for an answer that is wrong regardless of its value. The message states why."""


@dataclass(frozen=True)
class Claim:
    gold: str
    answer: str
    steps: tuple[tuple[str, str], ...] = ()
    nearly: tuple[tuple[str, str], ...] = ()
    """Pairs of an exact value and the decimal approximation that the answer gives for it."""


@lru_cache(maxsize=512)
def claim(gold: str, answer: str, problem_text: str = "") -> Claim:
    """Return the formulas to compare. Raises Refused if the answer is wrong regardless of its value."""
    problem = read_problem(problem_text)
    gold, answer = with_usual_sets(gold), with_usual_sets(answer)
    answer = _in_asked_base(gold, answer, problem)
    if (wanted := latex.words(gold)) is not None:
        return Claim(gold, _word(wanted, answer))
    gold, answer = without_wrapping(gold), without_wrapping(answer)
    if _AND.search(gold) and not _OR.search(gold) and _OR.search(answer):
        raise Refused("the answer gives alternatives; expected all of the values")
    if quantity(gold := _with_unit(gold, problem)) is not None:
        answer = _with_unit(vocabulary.without_ordinal(answer), problem)
    gold, answer = same_vector(gold, answer, problem)
    gold, answer = _without_parameter(gold, answer)
    if bool(_ELLIPSIS.search(gold)) != bool(_ELLIPSIS.search(answer)):
        raise Refused("only one of the lists has an ellipsis")
    if (number := vocabulary.spoken_number(_TEXT.sub(r"\1", answer).strip(" .!"))) is not None:
        answer = str(number)
    if (chosen := latex.choice(answer)) is not None:
        if chosen[1] and f"({chosen[0]})" in problem.text:
            answer = chosen[1]
        elif chosen[0] == gold:  # the letter of a point or an option
            answer = gold
    answer = without_modulus(gold, answer, problem)
    if r"\cup" in gold:
        answer = _EITHER.sub(r"\\cup", answer)
    if latex.brackets(gold) in ("(", "[") and "," in gold:
        answer = _SEMICOLON.sub(r"\1,\2", _POINT.sub("", answer))
    found = _as_list(gold, answer, problem) or _as_value(gold, answer, problem)
    if quantity(found.answer) is None and (scale := _SCALED.search(found.answer)) and scale[1] not in found.gold:
        raise Refused(f"the word {scale[1]!r} changes the value")
    found = _in_requested_unit(found, problem)
    if (reason := unfinished(found.gold, found.answer, problem)) is not None:
        raise Refused(reason)
    return found


def _word(wanted: str, answer: str) -> str:
    r"""Return the word of `\text{Graph A}` or `\text{Yes, it is}`, or `answer` if its other words may matter."""
    given = latex.plain_words(answer).strip("().")
    if given == wanted:
        return answer
    if wanted in _VERDICTS and (reason := given.removeprefix(wanted)) != given:
        return wanted if reason[:1] in (",", ".", ":", ";", " ") and not _DOUBT.search(reason) else answer
    named, lettered = _NAMED.fullmatch(given), _LETTERED.fullmatch(given)
    if named and named["word"] == wanted and (named["noun"] or "number") in _KINDS:
        return wanted
    return wanted if lettered and lettered["letter"] == wanted and lettered["kind"] in _KINDS else answer


def _in_asked_base(gold: str, answer: str, problem: ProblemStatement) -> str:
    """Drop the base of a number if the gold answer has none and the problem names the base."""
    given = latex.based(answer)
    if given is None or latex.based(gold) is not None or given[0].casefold() != latex.unquoted(gold).casefold():
        return answer
    asks = "hexadecimal" in problem.words if given[1] == 16 else "binary" in problem.words and given[1] == 2
    return gold if asks or re.search(rf"base.{{0,12}}\b{given[1]}\b", problem.text) else answer


def _with_unit(text: str, problem: ProblemStatement) -> str:
    r"""Write a letter after a number as a unit, `\text{ m}`, if the problem has that unit and no such variable."""
    text = _NUMBER_IN_TEXT.sub(r"\1", text)
    match = _BARE_UNIT.search(text)
    if match is None or match[1] in problem.variables or vocabulary.UNITS.get(match[1].casefold()) not in problem.units:
        return text
    return rf"{text[: match.start()]}\text{{ {match[1].casefold()}}}{match[2] or ''}"


def _without_parameter(gold: str, answer: str) -> tuple[str, str]:
    r"""Drop `n \in \mathbb{Z}` from `n\pi, n \in \mathbb{Z}`. The answer may rename or not explain it."""
    if (wanted := _PARAMETER.search(gold) if "Z" in gold or "integer" in gold else None) is None:
        return gold, answer
    given = _PARAMETER.search(answer)
    gold, named = gold[: wanted.start()].rstrip(" ,;"), next(filter(None, wanted.groups()))
    if given is None:
        return gold, answer
    letter = next(filter(None, given.groups()))
    return gold, re.sub(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])", named, answer[: given.start()].rstrip(" ,;"))


def _in_requested_unit(found: Claim, problem: ProblemStatement) -> Claim:
    """Drop the percent sign if a percentage is requested. Raises Refused if another unit is requested."""
    wanted, given = quantity(found.gold), quantity(found.answer)
    if problem.percent and wanted and given and given.percent and not wanted.percent and abs(wanted.value) >= 1:
        return replace(found, answer=found.answer.replace("%", ""))
    if problem.text and wanted and given and abs(wanted.value) >= 1:
        if given.percent and not wanted.percent and not problem.mentions_percent:
            raise Refused("the answer is in percent, but the problem does not mention a percentage")
        if given.unit == "degree" and wanted.unit is None and not problem.mentions_angles:
            raise Refused("the answer is in degrees, but the problem does not mention an angle")
    unit = given.unit if given else unit_of(found.answer)
    of_gold = wanted.unit if wanted else unit_of(found.gold)
    if unit and not of_gold and (other := vocabulary.other_unit(unit, problem.measured, problem.units)) is not None:
        raise Refused(f"the answer is in {unit}, but the problem asks for {other}")
    return found


def _worded(gold: str, answer: str, problem: ProblemStatement) -> str:
    if latex.based(answer) is not None:
        return answer
    try:
        return without_words(gold, answer, problem)
    except UnknownWord as unknown:
        raise Refused(f"{str(unknown)!r} may change the meaning of the answer") from None


def _named(text: str, problem: ProblemStatement) -> tuple[str, str] | None:
    r"""Split `x = 2` or `x \in \{2, 3\}` into its name and value. Return None for anything else."""
    found = latex.links(text)
    if len(found) != 2 or found[1][0] not in ("=", r"\in"):
        return None
    name, value = found[0][1], found[1][1]
    return (name, value) if is_name(name, problem) else None


def _as_list(gold: str, answer: str, problem: ProblemStatement) -> Claim | None:
    """Return named values (`x = 2, y = 3`) in the gold answer's order, or None if the answer is not such a list."""
    wanted, given = _assignments(gold, problem), _assignments(answer, problem)
    if wanted is given is None:
        return None
    variables = {latex.without_spaces(name).partition("_")[0] for name, _ in wanted or ()}
    if wanted is not None and len(variables) == len(wanted) and _OR.search(answer):
        raise Refused("the answer gives alternatives; expected a value of each variable")
    if given is None:
        return _unnamed(wanted, answer, problem) if wanted is not None and len(variables) == len(wanted) else None
    names = [latex.without_spaces(name) for name, _ in given]
    values = [_worded(gold, value, problem) for _, value in given]
    if wanted is not None and len(set(names)) == len(names):
        order = [latex.without_spaces(name) for name, _ in wanted]
        if sorted(order) != sorted(names):
            return None
        by_name = dict(zip(names, values, strict=True))
        return Claim(_tuple([value for _, value in wanted]), _tuple([by_name[name] for name in order]))
    if len({name.partition("_")[0] for name in names}) == 1:  # x = 2 or x = 3
        if wanted is not None:
            gold = ", ".join(value for _, value in wanted)
        elif (own := _named(gold, problem)) is not None:
            gold = own[1]
        if not _SEVERAL.search(gold):
            raise Refused("more than one answer is given")
        return Claim(gold, ", ".join(value.removeprefix(r"\{").removesuffix(r"\}") for value in values))
    if wanted is None and latex.brackets(gold) == "(" and len(set(names)) == len(names):
        by_name = dict(zip(names, values, strict=True))
        return Claim(gold, _tuple([by_name[name] for name in ordered_names(names, problem) if name in by_name]))
    if not _SEVERAL.search(gold):
        raise Refused("more than one answer is given")
    return None


def _unnamed(wanted: list[tuple[str, str]], answer: str, problem: ProblemStatement) -> Claim | None:
    """Compare values without names in the usual order of the variables. A set has no order, so it is refused."""
    kind = latex.brackets(answer)
    if kind == "{":
        raise Refused("the answer does not say which value belongs to which variable")
    values = latex.parts(answer[1:-1] if kind else answer)
    if len(values) != len(wanted):
        return None
    by_name = {latex.without_spaces(name): value for name, value in wanted}
    names = ordered_names(list(by_name), problem)
    return Claim(_tuple([by_name[name] for name in names]), _tuple(values))


def _tuple(values: list[str]) -> str:
    return f"({', '.join(values)})"


def _assignments(text: str, problem: ProblemStatement) -> list[tuple[str, str]] | None:
    sides = [side for _, side in latex.links(text)] if text.startswith("(") and "=" in text else []
    if len(sides) == 2 and latex.brackets(sides[0]) == latex.brackets(sides[1]) == "(":  # (x, y) = (2, 3)
        names, values = (latex.parts(side[1:-1]) for side in sides)
        return list(zip(names, values, strict=True)) if 1 < len(names) == len(values) else None
    text = re.sub(r"^\\\{(.*)\\\}$|^\((.*)\)$", lambda match: match[1] or match[2], text) if "=" in text else text
    items = latex.parts(text)
    if len(items) < 2:
        return None
    found = [_named(item, problem) for item in items]
    if any(one is None for one in found):
        if found[0] is None or any(found[1:]):
            return None
        first = found[0]  # x = 2, 3
        return None if "," in first[0] else [first, *((first[0], item) for item in items[1:])]
    return [one for one in found if one is not None]


def _as_value(gold: str, answer: str, problem: ProblemStatement) -> Claim:
    of_gold, of_answer = latex.links(gold), latex.links(answer)
    signs = {sign for sign, _ in of_answer[1:]}
    if len(latex.parts(gold)) == 1 and len(of_gold) == 2 and of_gold[1][0] in ("=", r"\in"):
        return _as_named(gold, answer, problem)
    if len(of_gold) > 1:
        answer = _worded(gold, answer, problem)
        named = _named(answer, problem)
        return Claim(gold, named[1] if named and latex.links(answer)[1][0] == r"\in" else answer)
    if signs & _ORDER:
        if not re.search(r",|\\infty|\\cup|\\[{]|\\mathbb", gold) or quantity(gold) is not None:
            raise Refused("the answer is a relation; expected a value")
        solved = (
            answer if latex.plain_spelling(answer) in problem.formulas else solved_set(_worded(gold, answer, problem))
        )
        if latex.brackets(solved) and not re.search(r"[\[(<>]|\\[lg]e(?![a-z])|\\mathbb", gold):
            raise Refused("the answer is an interval; expected a list of values")
        return Claim(gold, solved)
    if len(latex.parts(answer)) > 1 and quantity(answer) is None and not _SEVERAL.search(gold):
        numbers = [quantity(part) for part in latex.parts(answer)]
        if any(number is None for number in numbers) or len({number.value for number in numbers if number}) > 1:
            raise Refused("more than one answer is given")
        return Claim(gold, latex.parts(answer)[0])  # a number in two spellings
    if len(latex.parts(answer)) > 1:
        items = [_named(item, problem) for item in latex.parts(answer)]
        stripped = [one[1] if one else item for one, item in zip(items, latex.parts(answer), strict=True)]
        if any(items) and not all(items) and items[0] is not None:
            answer = ", ".join(stripped)
        return Claim(gold, _worded(gold, answer, problem))
    return _chain(gold, answer, problem)


def _as_named(gold: str, answer: str, problem: ProblemStatement) -> Claim:
    """Compare with a gold answer such as `y = 2x + 3`, which may be given without its name or rearranged."""
    name, value = (side for _, side in latex.links(gold))
    found = latex.links(answer)
    if is_name(name, ProblemStatement()) and len(found) <= 2:
        names = [side for sign, side in found if latex.without_spaces(side) == latex.without_spaces(name)]
        if len(found) == 1:
            return Claim(value, _worded(gold, answer, problem))
        if names and found[1][0] in ("=", r"\in") and latex.without_spaces(found[0][1]) == latex.without_spaces(name):
            return Claim(value, _worded(gold, found[1][1], problem))
        if found[1][0] == "=" and _is_same_function(latex.without_spaces(name), latex.without_spaces(found[0][1])):
            return Claim(value, _worded(gold, found[1][1], problem))
        if not _LETTERS.search(value) and found[1][0] == "=":
            if latex.without_spaces(found[1][1]) == latex.without_spaces(name):
                return Claim(value, _worded(gold, found[0][1], problem))
            raise Refused(f"the answer does not define {name}")
    if "'" in answer and "'" not in gold:
        raise Refused("the answer is a derivative; expected the function itself")
    return Claim(gold, _worded(gold, answer, problem))


def _is_same_function(one: str, other: str) -> bool:
    """Return whether two names can stand for the same function, as `y` and `f(x)` can."""
    return "y" in (one, other) and (_APPLIED.fullmatch(one) or _APPLIED.fullmatch(other)) is not None


def _chain(gold: str, answer: str, problem: ProblemStatement) -> Claim:
    r"""Parse `A = \pi r^2 = 9\pi` or `\sqrt{2} \approx 1.414`. Its value is the last exact side."""
    found = latex.links(answer)
    if len(found) == 1:
        value = _worded(gold, answer, problem)
        if (
            quantity(gold) is not None
            and quantity(value) is None
            and (unknown := _UNKNOWN.search(_without_text(value))) is not None
        ):
            raise Refused(f"the answer still contains the variable {unknown[0]}; expected a number")
        return Claim(gold, value)
    named = is_name(found[0][1], problem)
    sides = [
        (sign, side)
        for sign, side in found
        if side and (not is_name(side, problem) or quantity(side) is not None or _ARITHMETIC.fullmatch(side))
    ]
    if not named and is_name(found[-1][1], problem) and len(found) == 2:  # 7 = x
        named, found = True, [("", found[1][1]), ("=", found[0][1])]
    if named and (is_other_quantity(found[0][1], problem) or ("," in found[0][1] and "," not in found[-1][1])):
        raise Refused(f"{found[0][1]} is not the requested quantity")
    letters = set(_LETTERS.findall(gold))
    if named:  # drop intermediate formulas, such as \pi r^2
        sides = [(sign, side) for sign, side in sides if set(_LETTERS.findall(_without_text(side))) <= letters]
    if not sides and named:
        sides = found[-1:]  # z = i
        if quantity(gold) is not None and _LETTERS.search(_without_text(sides[0][1])):
            raise Refused("the answer does not give a value")
    if not sides:
        raise Refused("the answer does not give a value")
    values = [(sign, _worded(gold, side, problem)) for sign, side in sides]
    if not named and any(set(_LETTERS.findall(_without_text(side))) - letters for _, side in values):
        raise Refused(f"{found[0][1]} is not the requested quantity")
    exact = [side for sign, side in values if sign not in _APPROXIMATE]
    nearly = [side for sign, side in values if sign in _APPROXIMATE]
    if (problem.rounds or "." in gold) and nearly:
        value = nearly[-1]
    elif exact:
        value = exact[-1]
    else:
        raise Refused("the answer is only an approximation; expected an exact value")
    return Claim(
        gold,
        value,
        tuple(pairwise(map(latex.in_base_ten, exact))),
        tuple((exact[-1], side) for side in nearly) if exact else (),
    )


def _without_text(side: str) -> str:
    return re.sub(r"\\text\s*\{[^{}]*\}|\\[a-z]+(?=\s*\{)", "", side)


_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi"
    r"|varphi|chi|psi|omega|ell|Delta|Gamma|Lambda|Omega|Phi|Psi|Sigma|Theta)(?![a-z])"
)
_LETTER = rf"(?:[a-zA-Z]|{_GREEK})"
_INDEX = r"(?:_(?:\{[\w, \\]+\}|\\text\s*\{[\w ]+\}|\w))"
_ANY_TEXT = r"\\text\s*\{[^{}]*\}"
_POINTS = r"[A-Z]{1,5}"
_NAME = re.compile(
    rf"""(?:
      (?:{_LETTER}|[A-Z]{{1,5}}|{_ANY_TEXT}){_INDEX}?                                       # x, x_1, AB, \text{{Area}}
    | {_LETTER}{_INDEX}?(?:\^\{{-1\}})?\((?:{_LETTER}|-?\d+)(?:,\s*(?:{_LETTER}|-?\d+))*\)  # f(x), f(3), f^{{-1}}(x)
    | (?:P|E|\\Pr|\\text\s*\{{[^{{}}]*\}}|\\mathbb\{{?[PE]\}}?)\s*[(\[][^()\[\]=<>]*[)\]]     # P(A), E[X]
    | m?\s*\\(?:angle|measuredangle|triangle)\s*(?:\{{?{_POINTS}\}}?|[a-z]|\d)
    | m?\s*\\(?:overline|overrightarrow|widehat|vec|hat|bar)\s*(?:\{{\s*(?:{_POINTS}|[a-z])\s*\}}|[a-z])
    | [\[|]\s*(?:{_POINTS}|\\overline\s*\{{{_POINTS}\}})\s*[\]|]                              # [ABC], |AB|
    | [a-zA-Z][a-zA-Z ]*\b                                                                 # Total cost
    )(?:\s*(?:{_ANY_TEXT}|\\triangle\s*|[A-Z]{{1,5}}+))*+""",
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
    text = _CONCLUSION.sub("", _END_MARK.sub("", latex.normalized(text)))
    if emphasized := _EMPHASIS.fullmatch(text):
        text = latex.normalized(emphasized[1])
    text = _LABELLED.sub(r"\1", text)
    text = _UNIT_IN_BRACKETS.sub(r" \\text{\1}", text)
    announced = _ANNOUNCED.match(text)
    if announced and not vocabulary.changes_numbers(announced["before"]):
        text = text[announced.end() :]
        if announced.group().count("{") > announced.group().count("}"):
            text = re.sub(r"\s*\}", "", text, count=1)
    if set_builder := _SET_BUILDER.fullmatch(text):
        text = set_builder[1].strip()
    return _REMARK.sub(r" \\approx \1", text)


def without_modulus(gold: str, answer: str, problem: ProblemStatement) -> str:
    r"""Reduce an answer such as `n \equiv 5 \pmod{23}` to `5`, unless the gold answer has a modulus."""
    found = None if residue(gold, ProblemStatement()) else residue(answer, problem)
    return answer if found is None else found[1]


def is_name(text: str, problem: ProblemStatement) -> bool:
    """Return whether `text` is a plain name or the requested quantity: `x = 7` means 7, but `-x = 7` does not."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        return False
    bare = latex.plain_spelling(text)
    if not bare or is_requested(text, problem):
        return bool(bare)
    if (names := _TUPLE.fullmatch(text)) is not None:
        return _in_order(latex.without_spaces(names[1]).split(","), problem)
    if _SUM.fullmatch(bare) or (_PRODUCT.fullmatch(text) and len(set(bare)) == len(bare)):
        return ("sum" if "+" in bare else "product") in problem.words and set(bare) - {"+"} <= _letters(problem)
    if _NAME.fullmatch(text) is None or vocabulary.changes_numbers(text):
        return False
    if _PLAIN_WORDS.fullmatch(text) and 1 < len(text) < 4 and not text.isupper():
        return False
    # `f(3)` is not a name if the problem contains it but asks for another value of `f`.
    return not (_OF_NUMBER.fullmatch(bare) and bare in problem.formulas)


def _in_order(names: list[str], problem: ProblemStatement) -> bool:
    listed = f"({','.join(names)})"
    return listed in problem.tuples or (names == sorted(names) and not _reordered(names, problem))


def _reordered(names: list[str], problem: ProblemStatement) -> bool:
    return any(sorted(other.strip("()").split(",")) == sorted(names) for other in problem.tuples)


def ordered_names(names: list[str], problem: ProblemStatement) -> list[str]:
    """Return the names in the order of a tuple in the problem, or in alphabetical order if no tuple contains them."""
    for other in problem.tuples:
        listed = other.strip("()").split(",")
        if sorted(listed) == sorted(names):
            return listed
    return sorted(names)


def _letters(problem: ProblemStatement) -> set[str]:
    return {letter for formula in problem.formulas for letter in re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]", formula)}


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
_ROUNDED = frozenset({"about", "around", "approximately", "approximate", "approx", "roughly"})
_NEGATIVE = re.compile(
    r"(?:\\text\s*\{\s*(?:negative|minus)\s*\}|\b(?:negative|minus)\b)\s*(?=[\d\\.$])", re.IGNORECASE
)


_BEFORE_NUMBER = re.compile(r"\s*(?:[\d$.(-]|\\(?:frac|sqrt|pi))")
_LEADING = vocabulary.word_set(
    """
    the a an is are so it its he she they there has have will be total of value final result answer exactly just only
    precisely and or
    """
)


class UnknownWord(ValueError):
    """Raised for a word in the answer that may change its value."""


def without_words(gold: str, answer: str, problem: ProblemStatement) -> str:
    r"""Return `answer` without harmless words. Units, `and` and `or` are kept. Raises UnknownWord for any other word.

    `18 \text{ eggs}` means 18, but `\text{half of } 18` and `\text{maybe } 18`
    do not.

    Units of measure, common nouns and words from the problem are harmless. Any other word makes the answer wrong.
    """
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

    return latex.normalized(_CHUNK.sub(kept, answer))


def _leading(text: str, known: frozenset[str], problem: ProblemStatement) -> str | None:
    """Return the first word that must not precede a number, such as `multiple` in `multiple of 5`, or None."""
    word: str
    for word in _WORD.findall(text):
        lower = word.casefold()
        if not (
            lower in _LEADING or lower in known or vocabulary.is_unit(word) or (lower in _ROUNDED and problem.rounds)
        ):
            return word
    return None


def _is_formula(run: str, known: frozenset[str], symbolic: bool, problem: ProblemStatement) -> bool:
    r"""Return whether letters outside `\text` stand for a product of variables or a pair of points, not for words."""
    if " " in run:
        return all(_is_formula(word, known, symbolic, problem) for word in run.split())
    if run.isupper() or run.casefold() in known:
        return True
    return len(run) <= 3 and (symbolic or not _is_word(run, problem))


def _is_word(run: str, problem: ProblemStatement) -> bool:
    word = run.casefold()
    return (
        word in _JOINING
        or word in vocabulary.CHANGING
        or word in problem.words
        or word in vocabulary.SCALES
        or vocabulary.is_unit(word)
        or vocabulary.is_common(word)
    )


def _kept(text: str, known: frozenset[str], problem: ProblemStatement) -> str:
    """Return the part of `text` that must be kept. Raises UnknownWord for a word that may change the value."""
    if not _WORD.search(text):
        return text
    words = _WORD.findall(text)
    lone = text.strip()
    if words == [lone] and len(lone) == 1 and lone.casefold() in known:
        return lone
    if (lone == "L" and not {"L", "l"} & problem.variables) or (
        len(lone) > 1 and lone.isupper() and vocabulary.is_unit(lone)
    ):
        return rf"\text{{ {lone.casefold()}}}"
    is_symbol = len(lone) == 1 and not vocabulary.is_unit(lone)
    if words == [lone] and lone.isascii() and ((lone.isupper() and len(lone) <= 5) or is_symbol):
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


def _is_plain(words: list[str]) -> bool:
    """Return whether every word is a unit of measure or a factor such as `thousand`."""
    return all(
        vocabulary.is_unit(word) or word.casefold() in vocabulary.SCALES or word.casefold() == "per" for word in words
    )


def _without(text: str) -> str:
    words = _WORD.findall(text)
    return _WORD.sub(lambda match: match[0] if vocabulary.is_unit(match[0]) or _is_plain(words) else "", text)


def _measured(words: list[str], problem: ProblemStatement) -> list[str]:
    """Return the unit at the start of the words: `dollars` for `dollars for eggs`, but nothing for `eggs per day`."""
    taken: list[str] = []
    for word in words:
        lower = word.casefold()
        if vocabulary.stems(word) & problem.counted and lower in vocabulary.CHANGING:
            break
        if not (vocabulary.is_unit(word) or lower.removesuffix("s") in vocabulary.SCALES):
            break
        taken.append(word)
    return taken if taken and taken[0].casefold() not in ("per", "each", "every", "a", "an") else []


def _is_allowed(word: str, words: list[str], position: int, known: frozenset[str], problem: ProblemStatement) -> bool:
    if word in known or word in _JOINING:
        return True
    if word in _POWERS:
        beside = words[max(position - 1, 0) : position + 2]
        return any(vocabulary.is_unit(other) and other.casefold() not in _POWERS for other in beside)
    if word in _ROUNDED:
        return problem.rounds
    forms = vocabulary.stems(word)
    if forms & {stem for counted in problem.counted for stem in vocabulary.stems(counted)}:
        return "than" not in words
    if word.removesuffix("s") in vocabulary.SCALES:
        return all(other.casefold().removesuffix("s") in vocabulary.SCALES for other in words[:position])
    if vocabulary.is_unit(word) or vocabulary.is_common(word):
        return True
    return not forms & vocabulary.CHANGING and any(forms & vocabulary.stems(other) for other in problem.words)

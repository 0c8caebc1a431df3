r"""Checks that an answer has the form of the gold answer: evaluated, solved, simplified, factored or expanded as far.

An equal value is not enough: `\binom{9}{2}` equals 36, and so does the formula in the problem itself.
"""

from __future__ import annotations

import math
import re

from rollyard.resources_servers.answers.latex import links, normalized, parts, plain_spelling
from rollyard.resources_servers.answers.problem_statement import ProblemStatement
from rollyard.resources_servers.answers.quantity import quantity

MAX_STEPS = 2
"""A number may have up to twice as many operations (sums, products, roots and so on) as the gold answer, plus this
many: `2^5` is accepted for 32."""
_INVERSE = r"\\arc|\\(?:sin|cos|tan|cot|sec|csc)h?\s*\^\s*\{?\s*-\s*1"
_UNFINISHED = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("a binomial coefficient", r"\\[dt]?binom|\\choose|_\{?\d+\}?\s*[PC]\s*_|\d\s*[PC]\s*\d|[PC]\(\d+,\s*\d+\)"),
        ("a factorial", r"!"),
        (
            "a sum or a product over a range",
            r"\\(?:sum|prod)(?![a-z])|(?<![\d.])\d+ *\\[lc]?dots|\\[lc]?dots.*[+*]|[+*].*\\[lc]?dots|\\cdots",
        ),
        ("a limit, a derivative or an integral", r"\\(?:lim|i*int|oint)(?![a-z])|\\frac\s*\{\s*d\s*\}|\\frac\s*\{d\b"),
        ("a rounding function", r"\\(?:lfloor|lceil)|\\text\s*\{\s*(?:floor|ceil|round)"),
        (
            "a divisor, a remainder, a maximum or a minimum",
            r"\\(?:gcd|lcm|max|min|sup|inf|bmod|mod|det|deg|dim|ker)(?![a-z])|\b(?:gcd|lcm|mod|det|max|min)\b",
        ),
        ("an inverse trigonometric function", _INVERSE),
        ("a trigonometric function", rf"(?!{_INVERSE})\\(?:sin|cos|tan|cot|sec|csc)h?(?![a-z])"),
        ("a logarithm", r"\\(?:log|ln|lg)(?![a-z])"),
        ("an exponential function", r"\\exp(?![a-z])"),
        ("a gamma function", r"\\(?:Gamma|zeta)\s*\("),
        ("an absolute value", r"\\[lr]?vert(?![a-z])|\|"),
        ("a complex conjugate, a real or an imaginary part", r"\\(?:Re|Im|arg)(?![a-z])|\\overline\s*\{[^{}]*[a-z+]"),
        (
            "a matrix operation",
            r"\\end\{\w*matrix\}\s*(?:\\begin|\^|[-+]|\\cdot|\\times|\d|\\text)|\\begin\s*\{vmatrix",
        ),
    )
)
_COUNTED = frozenset(("a binomial coefficient", "a factorial"))
_COUNTS = re.compile(r"!|binom|\\choose")
"""If the gold answer is not evaluated either, factorials and binomial coefficients may replace each other."""
_STEPS = re.compile(
    r"(?<=[\w})\]|!])\s*(?:[-+*/]|\\(?:times|cdot|div)(?![a-z]))|\\(?:frac|sqrt)(?![a-z])"
    r"|\^(?!\\circ)|(?<=[\d)])\s*\("
)
_ARITHMETIC = re.compile(
    r"(?<=[\d})])\s*(?:\^\\circ)?\s*(?:[-+*/]|\\(?:times|cdot|div)(?![a-z])|\()\s*(?=[\d.\\({-])|\d\.\d+\s*\}?\s*/|/\s*\d*\.\d"
    r"|\\frac\s*\{[^{}]*(?:\d\.\d|\d\s*[-+*])[^{}]*\}|\\frac\s*\{[^{}]*\}\s*\{[^{}]*(?:\d\.\d|\d\s*[-+*])[^{}]*\}"
)
"""Matches arithmetic between numbers, such as `64 - 56`, but not powers such as `2^5`."""
_OPERAND = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")
_FRACTION = re.compile(r"-?\s*[\d,]+\s*/\s*[\d,]+")
_RADICAND = re.compile(r"\\sqrt\s*(?:\{\s*(\d+)\s*\}|(\d))")
_LETTER = re.compile(r"(?<![a-zA-Z\\])(?![eid](?![a-zA-Z]))[a-zA-Z]")
_COMPARISON = re.compile(r"<|>|\\(?:le|ge)(?![a-zA-Z])")
_BOUNDED = re.compile(r"-?\s*(?:[a-zA-Z]|\\[a-z]+)(?:_\{?\w+\}?)?(?:\([a-z]\))?")
_SCIENTIFIC = re.compile(r"\s*(?:\\times|\\cdot)\s*10\s*\^\s*\{?-?\d+\}?")
_MIXED = re.compile(r"-?\d+ *\\frac")
_GROUP = re.compile(r"\(([^()]*[-+][^()]*)\)")
_LEADING = re.compile(r"\d{1,9}")
_PRODUCT = re.compile(r"\([^()]*[-+][^()]*\)\s*(?:\^|[\w(\\])|\w\s*\([^()]*[-+][^()]*\)")


def unfinished(gold: str, answer: str, problem: ProblemStatement) -> str | None:
    """Return why `answer` is not in final form although it may equal `gold`, or None if it is."""
    gold, answer = normalized(gold), normalized(answer)
    for name, pattern in _UNFINISHED:
        kin = _COUNTS.search(gold) if name in _COUNTED else None
        is_residue = name.startswith("a divisor") and re.fullmatch(r"-?\d+ *\\bmod *\d+", answer)
        if pattern.search(answer) and not pattern.search(gold) and not kin and not is_residue:
            return f"{name} is left unevaluated"
    if plain_spelling(answer) == plain_spelling(gold):
        return None
    if _is_problem_formula(gold, answer, problem):
        return "the answer repeats a formula from the problem"
    if (unsolved := _unsolved(gold, answer)) is not None:
        return unsolved
    if quantity(gold) is not None and _is_set_up(answer, problem):
        return "the answer is an unevaluated calculation with the problem's numbers"
    if not _LETTER.search(_bare(gold)) and _steps(answer) > 2 * _steps(gold) + MAX_STEPS * len(parts(answer)):
        return "the arithmetic is left unevaluated"
    return _other_form(gold, answer, problem)


def _is_problem_formula(gold: str, answer: str, problem: ProblemStatement) -> bool:
    """Return whether the answer only repeats a formula from the problem, which the gold answer simplifies."""
    bare = plain_spelling(answer)
    if bare not in problem.formulas and plain_spelling(_bare(answer)) not in problem.formulas:
        return False
    number, wanted = quantity(answer), quantity(gold)
    if number is not None and wanted is not None:  # 0.5 is not a fraction, and 4/8 is not in lowest terms
        decimal = (number.decimals is None) != (wanted.decimals is None)
        mixed = _MIXED.match(gold) is not None and _MIXED.match(answer) is None
        return decimal or mixed or _denominator(answer) != _denominator(gold)
    return _steps(answer) > 0 or _steps(gold) > 0


def _denominator(text: str) -> str:
    below = re.search(r"(?:\\frac\{?-?\d+\}?|/)\{?(\d+)\}?$", plain_spelling(text))
    return below[1] if below else ""


def _unsolved(gold: str, answer: str) -> str | None:
    """Return why an inequality is not solved: `|x-3| < 5` and `2x < 10` are not, `-2 < x < 8` and `(-2,8)` are."""
    if not _COMPARISON.search(answer):
        return None
    for of_gold in parts(gold):
        if _COMPARISON.search(of_gold) and not _is_solved(of_gold):
            return None
    return None if all(_is_solved(part) for part in parts(answer)) else "the inequality is not solved"


def _is_solved(part: str) -> bool:
    sides = [side for _, side in links(part)]
    names = [side for side in sides if _BOUNDED.fullmatch(side) and not side.startswith(("-", r"\infty", r"\pi"))]
    others = [side for side in sides if side not in names]
    if any(sign == r"\in" for sign, _ in links(part)):
        return len(names) >= 1
    return len(names) == 1 and not any(_contains(side, names[0]) for side in others)


def _contains(side: str, name: str) -> bool:
    return re.search(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])", side) is not None


def _steps(text: str) -> int:
    bare = _SCIENTIFIC.sub("", _bare(text))
    return len(_STEPS.findall(bare))


def _bare(text: str) -> str:
    return re.sub(r"\\text\s*\{[^{}]*\}(?:\s*\^\s*\{?\d\}?)?|\\begin\s*\{\w+\}|\\end\s*\{\w+\}|_\{[^{}]*\}", "", text)


def _is_set_up(answer: str, problem: ProblemStatement) -> bool:
    """Return whether the answer calculates with the problem's numbers: `64 - 56`, but not `3/4` or `3 * 10^5`."""
    bare = _SCIENTIFIC.sub("", _bare(answer)).strip()
    if _FRACTION.fullmatch(bare) or _ARITHMETIC.search(bare) is None:
        return False
    known = [number in problem.numbers for number in _OPERAND.findall(bare)]
    return all(known) or any(number in problem.numbers for number in _OPERAND.findall(bare) if len(number) > 1)


def _largest_radicand(text: str) -> int:
    return max((int(match[1] or match[2]) for match in _RADICAND.finditer(text)), default=0)


def _other_form(gold: str, answer: str, problem: ProblemStatement) -> str | None:
    """Return why the answer lacks the form that the problem asks for (factored, expanded, simplified), or None."""
    if "simplif" in problem.tasks and _largest_radicand(answer) > _largest_radicand(gold) > 0:
        return "a root is not simplified"
    if not _LETTER.search(_bare(gold)) or "=" in gold:
        return None
    if "factor" in problem.tasks and (
        _factors(answer) < _factors(gold) or _content(answer) > _content(gold) or _monomials(answer) > _monomials(gold)
    ):
        return "the answer is not factored as far as the gold answer"
    if "expand" in problem.tasks and not _PRODUCT.search(gold) and _PRODUCT.search(answer):
        return "the answer is not expanded"
    if "simplif" in problem.tasks and _terms(answer) > max(_terms(gold), 1) and _factors(answer) <= _factors(gold):
        return "the answer is not simplified"
    return None


def _factors(text: str) -> int:
    """Count the outermost factors that contain a variable, with multiplicity."""
    count = 0
    for match in re.finditer(r"(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\)|([a-zA-Z]))(?:\s*\^\s*\{?(\d{1,3})\}?)?", text):
        if match[2] or _LETTER.search(match[1]):
            count += int(match[3] or 1)
    return 1 if _terms(text) > 1 else count


def _content(text: str) -> int:
    """Return the product of the numbers that could be taken out of the factors: 4 for `(6-2x)(6+2x)`."""
    product = 1
    for factor in _GROUP.findall(text):
        product *= math.gcd(*(int(number[0]) if (number := _LEADING.match(term)) else 1 for term in _summands(factor)))
    return product


def _monomials(text: str) -> int:
    """Count the factors from which a variable could be taken out, such as `(x^2+x)`."""
    return sum(
        len(terms) > 1 and bool(set.intersection(*(set(_LETTER.findall(term)) for term in terms)))
        for factor in _GROUP.findall(text)
        if (terms := _summands(factor))
    )


def _summands(factor: str) -> list[str]:
    return [term for part in re.split(r"[-+]", factor) if (term := part.strip())]


def _terms(text: str) -> int:
    depth, count = 0, 1
    for position, character in enumerate(text.replace("\\{", "{").strip()):
        depth += (character in "([{") - (character in ")]}")
        count += depth == 0 and position > 0 and character in "+-"
    return count

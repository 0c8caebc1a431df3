r"""Parses sets of numbers in various notations: `[2,5[`, `x < 2 \text{ or } x > 3`, `all real numbers`."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from rollyard.resources_servers.answers.latex import links, normalized, parts
from rollyard.resources_servers.answers.problem_statement import ProblemStatement
from rollyard.resources_servers.answers.quantity import quantity

_OR = re.compile(r"\\text\s*\{\s*,?\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\cup")
_APPLIED = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]\([a-z]\)")
_REALS = re.compile(
    r"(?:[a-zA-Z] *\\in *)?"
    r"(?:\\mathbb *\{? *R *\}?|(?:the set of )?(?:all )?reals?(?: numbers?| values?)?(?: of)?(?: [a-z])?"
    r"|-\\infty *< *[a-z] *< *\\infty)"
    r"(?: *(?:\\setminus|except(?: for)?) *(?:[a-z] *= *)?\\?\{? *(?P<but>-?[\w\\{}/.]+?) *\\?\}?)?",
    re.IGNORECASE,
)
_NONE = re.compile(
    r"(?:there (?:is|are) )?"
    r"(?:no (?:real |integer |such )?(?:solutions?|values?|roots?|x)|none|(?:the )?empty set|null set"
    r"|does not exist|dne|\\emptyset|\\\{ *\\\})(?: exists?)?",
    re.IGNORECASE,
)
_VECTORS = frozenset(("vector", "vectors", "projection", "direction", "point", "intersection", "dilation"))
_TRANSPOSED = re.compile(r"(?<=[)\]}]) *\^ *\{? *(?:T|\\top|\\text *\{ *T *\}) *\}?$")
_MATRIX = re.compile(r"\\begin *\{[pb]?matrix\}((?:(?!\\begin|\\end).)*)\\end *\{[pb]?matrix\}", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_FOREIGN_INTERVAL = re.compile(
    r"(?:(?<![\w)}\]])|(?<=\\in)|(?<=\\cup))([\]\[])([^\[\](),;]+)[,;]([^\[\](),;]+)([\]\[])(?![\w(])"
)
_EXCLUDED = re.compile(r"([a-zA-Z]) *\\ne *(-?[\w\\{}/.]+)")
_DISTANCE = re.compile(r"(?:\||\\[lr]?vert) *([a-zA-Z]) *(?:\||\\[lr]?vert) *(<|>|\\le|\\ge)(?![a-z]) *([\w\\{}/.]+)")


def with_usual_sets(text: str) -> str:
    """Rewrite intervals with outward-facing brackets, the real numbers and the empty set in standard notation."""
    text = normalized(text)
    bare = _TEXT.sub(r"\1", text).strip()
    if (reals := _REALS.fullmatch(bare)) is not None:
        but = reals["but"]
        return rf"(-\infty,{but})\cup({but},\infty)" if but else r"(-\infty,\infty)"
    if _NONE.fullmatch(bare):
        return r"\emptyset"
    return _FOREIGN_INTERVAL.sub(_usual, text)


def same_vector(gold: str, answer: str, problem: ProblemStatement) -> tuple[str, str]:
    """Write vectors as tuples. A matrix of one row stands for a column only if the problem is about vectors."""
    if "matrix" not in gold + answer:
        return gold, answer
    if not problem.words & _VECTORS and ("&" in gold or "matrix" in answer or "matrix" not in gold):
        return gold, answer
    wanted, given = _vector(gold), _vector(answer)
    if wanted is None or wanted == gold == answer or given is None:
        return gold, answer
    return wanted, given


def _vector(text: str) -> str | None:
    text = _TRANSPOSED.sub("", text)
    matrix = _MATRIX.fullmatch(text)
    if matrix is None:
        return f"({text[1:-1]})" if text[:1] + text[-1:] in ("()", "[]") and "," in text else None
    columns, rows = matrix[1].split("&"), re.split(r"\\\\", matrix[1].strip().removesuffix("\\\\"))
    entries = rows if len(columns) == 1 else columns if len(rows) == 1 else []
    return f"({', '.join(entry.strip() for entry in entries)})" if len(entries) > 1 else None


def _usual(match: re.Match[str]) -> str:
    opening, ending = match[1], match[4]
    if (opening, ending) == ("[", "]"):
        return match[0]
    return f"{'[' if opening == '[' else '('}{match[2]},{match[3]}{']' if ending == ']' else ')'}"


def solved_set(answer: str) -> str:
    r"""Convert `x \ne 2`, and inequalities joined by `or`, to a union of intervals. Keep other relations."""
    if (pierced := _without_points(answer)) is not None:
        return pierced
    if distance := _DISTANCE.fullmatch(answer):
        name, sign, bound = distance.groups()
        opposite = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[sign]
        both = f"-{bound} {sign} {name} {sign} {bound}"
        answer = both if sign in ("<", r"\le") else f"{name} {opposite} -{bound} or {name} {sign} {bound}"
    intervals = [_interval(part) for part in _OR.split(answer)]
    if len({name for name, _ in intervals}) != 1 or not all(intervals[0]):
        return _APPLIED.sub("y", answer)
    return r"\cup".join(interval for _, interval in intervals)


def _without_points(answer: str) -> str | None:
    r"""Convert `0 < x < 5, x \ne 2` to a set difference and `x \ne 2, 3` to a union of intervals; else None."""
    points, names, base = list[tuple[Fraction, str]](), set[str](), ""
    for item in parts(answer):
        excluded = _EXCLUDED.fullmatch(item)
        number = quantity(excluded[2] if excluded else item)
        name, interval = _interval(item)
        if number is not None and (excluded or points):
            points.append((number.value, excluded[2] if excluded else item))
            names |= {excluded[1]} if excluded else set()
        elif interval and not base:
            base, names = interval, names | {name}
        else:
            return None
    if not points or len(names) != 1:
        return None
    bounds = [point for _, point in sorted(points)]
    if base:
        return rf"{base}\setminus\{{{', '.join(bounds)}\}}"
    ends = [r"-\infty", *bounds, r"\infty"]
    return r"\cup".join(f"({low},{high})" for low, high in pairwise(ends))


def _interval(part: str) -> tuple[str, str]:
    r"""Return the variable and the interval of an inequality such as `2 < x \le 3`, or empty strings."""
    found = links(part)
    sides, signs = [side for _, side in found], [sign for sign, _ in found[1:]]
    if signs and all(sign in (">", r"\ge") for sign in signs):
        sides, signs = sides[::-1], [{">": "<", r"\ge": r"\le"}[sign] for sign in signs[::-1]]
    if not signs or any(sign not in ("<", r"\le") for sign in signs) or len(sides) > 3:
        return "", ""
    names = [position for position, side in enumerate(sides) if re.fullmatch(r"[a-zA-Z](?:\([a-z]\))?", side)]
    if len(names) != 1 or (len(sides) == 3 and names != [1]):
        return "", ""
    at = names[0]
    low = ("[" if signs[at - 1] == r"\le" else "(") + sides[at - 1] if at else r"(-\infty"
    high = sides[at + 1] + ("]" if signs[at] == r"\le" else ")") if at + 1 < len(sides) else r"\infty)"
    return sides[at], f"{low},{high}".replace(r"(-\infty,\infty]", r"(-\infty,\infty)")

r"""Implements the MATH dataset's string comparison and the answer extraction of lm-eval's hendrycks_math.

This makes scores comparable with published ones. Under these rules, a \boxed{} answer without dollar signs is wrong.
"""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.extraction import Found

_DROPPED = re.compile(r"\n|\\!|\\left|\\right|\^\{\\circ\}|\^\\circ|\\\$|\\%|%")
_UNIT = re.compile(r"\\text\{ .*")
_ROOT = re.compile(r"\\sqrt(?!\{)(.)")
_FRACTION = re.compile(r"\\frac(?!\{)(.)(?:(?!\{)(.)|(?=\{))")
_BARE = re.compile(r"\\sqrt(?:$|\\sqrt)|\\frac\s*(?:$|\\frac)")
_SLASH = re.compile(r"(-?\d+)/(-?\d+)")


def between_dollars(text: str) -> Found | None:
    """Return the text between the first and the last dollar sign, or the whole text if it has fewer than two."""
    first, last = text.find("$"), text.rfind("$")
    if first < last:
        return Found(text[first + 1 : last], "between_dollars", last + 1)
    return Found(text, "whole_text", len(text)) if text.strip() else None


def last_box(solution: str) -> str | None:
    r"""Return the answer that lm-eval shows in a few-shot example: the argument of the solution's last `\boxed`."""
    bare = solution.rfind("\\boxed ")
    if bare >= 0:
        return solution[bare + len("\\boxed ") :].partition("$")[0]
    start = solution.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 0, start + len("\\boxed{")
    for position in range(first - 1, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[first:position]
    return None


def same_string(gold: str, answer: str) -> bool:
    """Return whether both normalize to the same string. If either cannot be normalized, compare them verbatim."""
    try:
        return normalized(gold) == normalized(answer)
    except ValueError:
        return gold == answer


def normalized(text: str) -> str:
    r"""Normalize an answer in the same way as MATH's original code.

    Raises ValueError in the same cases as the original: if there are two units, or if a \sqrt or \frac has no argument.
    """
    text = _DROPPED.sub("", text.replace(r"\\", "\\").replace("tfrac", "frac").replace("dfrac", "frac"))
    if text.count(r"\text{ ") > 1:
        raise ValueError(f"found two units in {text!r}")
    text = _UNIT.sub("", text)
    text = re.sub(r"(^|[ {])\.", r"\g<1>0.", text)
    left, equals, right = text.partition("=")
    if equals and len(left) <= 2 and "=" not in right:  # `x = 5`
        text = right
    if _BARE.search(text):
        raise ValueError(f"found \\sqrt or \\frac without an argument in {text!r}")
    text = _ROOT.sub(r"\\sqrt{\1}", text).replace(" ", "")
    text = _FRACTION.sub(lambda match: _braced(match.group(1), match.group(2)), text)
    if text == "0.5":
        return r"\frac{1}{2}"
    slash = _SLASH.fullmatch(text)
    return rf"\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


def _braced(above: str, below: str | None) -> str:
    return rf"\frac{{{above}}}" + (f"{{{below}}}" if below else "")

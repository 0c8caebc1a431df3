"""Decides whether the left side of an equation is the requested quantity: `a = 7` does not answer "find $a+b$"."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import plain_spelling
from rollyard.resources_servers.answers.problem_statement import Problem
from rollyard.resources_servers.answers.splitting import RELATIONS

_DERIVATIVE = re.compile(
    r"(?P<primed>[a-zA-Z])(?P<order>'+)(?:\([a-z]\))?"
    r"|\\frac\{?d(?P<above>[a-zA-Z])(?:\([a-z]\))?\}?\{?d[a-z]\}?|\\frac\{?d\}?\{?d[a-z]\}?(?P<behind>[a-zA-Z])(?:\([a-z]\))?"
)
_VARIABLE = re.compile(r"[a-zA-Z]|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega)")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega)(?![a-z])")
_APPLIED = re.compile(r"([a-zA-Z])\(.*\)")
_REMAINDER = frozenset(("remainder", "remainders", "residue", "mod", "modulo", "congruent", "congruence", "divided"))
_MODULUS = r"(?:\(? *\\pmod|\(? *\\b?mod(?![a-z])|\\text *\{ *\(?mod *\}) *\{? *(\d+) *\}? *\)?"
_CONGRUENT = re.compile(rf"(?:(.{{1,200}}?) *\\equiv *)?(-?\d+) *{_MODULUS}")
_DIVIDED = re.compile(rf"([^=]{{1,200}}?) *{_MODULUS} *= *(-?\d+)")


def derivative(formula: str) -> tuple[str, int] | None:
    r"""Return the function name and the order of a derivative (`f'(x)`, `y''`, `\frac{dy}{dx}`, `\frac{d}{dx} f(x)`),
    or None for anything else.
    """
    match = _DERIVATIVE.fullmatch(plain_spelling(formula))
    if match is None:
        return None
    return (match["primed"] or match["above"] or match["behind"], len(match["order"] or "'"))


def is_requested(name: str, problem: Problem) -> bool:
    """Return whether the problem asks for this formula, or for the same derivative in a different notation."""
    if plain_spelling(name) in problem.requested:
        return True
    derived = derivative(name)
    return derived is not None and derived in {derivative(formula) for formula in problem.requested}


def is_other_quantity(name: str, problem: Problem) -> bool:
    """Return whether `name` is a quantity in the problem, but not the one that the problem asks for."""
    bare = plain_spelling(name)
    if not problem.computed or is_requested(name, problem) or _is_set_equal(bare, problem):
        return False
    if _VARIABLE.fullmatch(bare):
        return any(bare in _LETTER.findall(formula) for formula in problem.formulas)
    applied = _APPLIED.fullmatch(bare)
    if applied and any(re.search(rf"(?<![a-zA-Z]){applied[1]}\(", asked) for asked in problem.computed):
        return True
    if "^{-1}" in bare:
        return "inverse" not in problem.words
    return bare in problem.formulas


def _is_set_equal(bare: str, problem: Problem) -> bool:
    """Return whether the problem states that `bare` equals the requested quantity."""
    pairs = ((bare, asked) for asked in problem.computed)
    return any(f"{one}={other}" in problem.formulas or f"{other}={one}" in problem.formulas for one, other in pairs)


def residue(answer: str, problem: Problem) -> tuple[str, str] | None:
    r"""Return the left side (empty if there is none) and the residue of `n \equiv 5 \pmod{17}` or `78 \bmod 4 = 2`.

    Return None for anything else, for a modulus that the problem does not mention, and for `78 \equiv 2` if the problem
    does not ask for a residue.
    """
    if divided := _DIVIDED.fullmatch(answer):
        left, modulus, value = divided.groups()
    elif congruent := _CONGRUENT.fullmatch(answer):
        left, value, modulus = congruent.groups()
    else:
        return None
    if problem.numbers and modulus not in problem.numbers:
        return None
    left = (left or "").strip()
    if divided or not _VARIABLE.fullmatch(left):
        known = left == "" or is_requested(left, problem) or not _LETTER.search(left)
        if not known or (left and not problem.words & _REMAINDER and not is_requested(left, problem)):
            return None
    return left, RELATIONS.sub("", value)

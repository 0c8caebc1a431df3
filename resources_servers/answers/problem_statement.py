"""Extracts what matters for the answer from a problem's text: formulas, the requested quantity, words and units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rollyard.resources_servers.answers.extraction import Formula, formulas
from rollyard.resources_servers.answers.latex import RELATIONS, links, normalized, parts, plain_spelling, sides
from rollyard.resources_servers.answers.vocabulary import unit_name

MAX_CHARACTERS = 20_000
"""Problems are truncated to this length."""
_PRICE = re.compile(
    r"(?<!\\)\$(?=\d[\d,.]*(?:[ ?!;:)]|$)(?=[^$]{0,40}[a-z]{3})(?![^$]{0,40}[\\^=_+<>{}]))", re.MULTILINE
)
_PLACEHOLDER = re.compile("⟦(\\d+)⟧")
_ASKS = re.compile(
    r"\b(?:find|compute|calculate|evaluate|determine|simplify|express|convert|factor|expand|enter|give|write|form"
    r"|what(?:'s|[^.?!⟦]{0,80}?\b(?:is|are|was|were)))\b",
    re.IGNORECASE,
)
_BY_ITSELF = re.compile(
    r"\b(?:find|compute|calculate|evaluate|determine|what(?:'s| is| are)) (?:the )?"
    r"(?:(?:exact|numerical|possible) )?(?:(?:value|values|product|sum|expression|quantity) (?:of )?){0,2}(?:the )?"
    r"(?:(?:product|sum|expression|quantity) )?⟦(\d+)⟧",
    re.IGNORECASE,
)
_ANGLES = re.compile(
    r"degree|angle|°|\\circ|\\theta|\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)|\barcs?\b|rotat|temperature|polygon|gon\b"
    r"|fahrenheit|celsius|latitude|longitude|quadrilateral|argument",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
_CLAUSE_ENDS = re.compile(
    r"[.?!](?=\s|$)|\b(?:such that|so that|if|where|given|when|whenever|for which|satisf\w*|with|which|that|who)\b",
    re.IGNORECASE,
)
_ROUNDS = re.compile(r"nearest|approximat|round|estimat|decimal|significant", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_COUNTED = re.compile(r"\bhow (?:many|much) (?:more |less |fewer )?(\w+)", re.IGNORECASE)
_MEASURED = re.compile(r"\b(?:in|how many|number of|nearest) (?:square |cubic |fluid )?([a-zA-Z]+)", re.IGNORECASE)
_PERCENT = re.compile(r"\b(?:what|which|how many|find the|by what|as a) percent|percentage", re.IGNORECASE)
_COMPARED = re.compile(r"\bhow (?:many|much) (?:\w+ )?(more|less|fewer)\b", re.IGNORECASE)
_TEXT = re.compile(r"\\text\s*\{[^{}]*\}")
_VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_POSITIVE = re.compile(r"\b(?:positive|nonnegative|non-negative)\b|> *0(?![.\d])|\\geq? *0(?![.\d])", re.IGNORECASE)
_MODULUS = re.compile(r"\(?\\(?:pmod|bmod).*$")
_TASKS = ("factor", "expand", "simplif")


@dataclass(frozen=True)
class ProblemStatement:
    """Properties of a problem that affect the verdict. Formulas are normalized with `plain_spelling`."""

    formulas: frozenset[str] = frozenset()
    """All formulas, including list items and the sides of equations."""
    requested: frozenset[str] = frozenset()
    """Formulas that follow `find`, `what is` and similar phrases."""
    computed: frozenset[str] = frozenset()
    """Formulas whose value the problem asks for: `find $a+b$`, but not `find the roots of $x^2-x$`."""
    tuples: tuple[str, ...] = ()
    """Tuples of variables, such as `(x,y)`."""
    words: frozenset[str] = frozenset()
    counted: frozenset[str] = frozenset()
    """What the problem asks to count: `eggs` in "how many eggs", and `more` in "how many more"."""
    tasks: frozenset[str] = frozenset()
    """Stems of the forms that the problem asks for: `factor`, `expand`, `simplif`."""
    units: frozenset[str] = frozenset()
    """Canonical names of the units that the text mentions."""
    measured: frozenset[str] = frozenset()
    """Canonical names of the units that the problem asks for: `in cents`, `how many feet`."""
    percent: bool = False
    """Whether the problem asks for a percentage."""
    rounds: bool = False
    """Whether the problem accepts an approximation."""
    mentions_percent: bool = False
    mentions_angles: bool = False
    """Whether the problem mentions angles or temperatures, so the answer may be in degrees."""
    numbers: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    """Letters that stand alone, in the formulas or between words."""
    positive: bool = False
    """Whether the problem says that its variables are positive."""
    text: str = ""


def problem_text(task: Mapping[str, Any]) -> str:
    """Return the row's `problem` or `question`, or else the last user message of a chat, which may be empty."""
    for key in ("problem", "question"):
        if isinstance(text := task.get(key), str) and text.strip():
            return text
    params = task.get("responses_create_params")
    messages = params.get("input") if isinstance(params, Mapping) else None
    if task.get("form", "chat") != "chat" or not isinstance(messages, list) or not messages:
        return ""
    content = messages[-1].get("content") if isinstance(messages[-1], Mapping) else None
    return content if isinstance(content, str) else ""


@lru_cache(maxsize=512)
def read_problem(text: str) -> ProblemStatement:
    if not text:
        return ProblemStatement()
    text = _PRICE.sub(r"\\$", text[:MAX_CHARACTERS])
    spans = list(formulas(text))
    found = [normalized(formula.text) for formula in spans]
    prose = _with_placeholders(text, spans)
    requested, computed = set[str](), set[str]()
    for match in _ASKS.finditer(prose):
        clause = prose[match.end() : match.end() + 300]
        end = _CLAUSE_ENDS.search(clause)
        for placeholder in _PLACEHOLDER.finditer(clause[: end.start()] if end else clause):
            requested |= _single(found[int(placeholder[1])])
    for match in _BY_ITSELF.finditer(prose):
        computed |= _single(found[int(match[1])])
    pieces = set[str]().union(*map(_pieces, found))
    words = frozenset(word.casefold() for word in _WORD.findall(prose))
    counted = {match[1].casefold() for match in (*_COUNTED.finditer(prose), *_COMPARED.finditer(prose))}
    return ProblemStatement(
        formulas=frozenset(pieces),
        requested=frozenset(requested),
        computed=frozenset(computed),
        tuples=tuple(
            dict.fromkeys(piece for piece in pieces if re.fullmatch(r"\([\\a-zA-Z]+(,[\\a-zA-Z]+)+\)", piece))
        ),
        words=words,
        counted=frozenset(counted),
        tasks=frozenset(task for task in _TASKS if re.search(rf"\b{task}", prose, re.IGNORECASE)),
        units=frozenset(unit for word in words if (unit := unit_name(word))) | ({"dollar"} if r"\$" in text else set()),
        measured=frozenset(unit for match in _MEASURED.finditer(prose) if (unit := unit_name(match[1]))),
        percent=_PERCENT.search(prose) is not None,
        rounds=_ROUNDS.search(prose) is not None,
        mentions_percent="%" in text or "percent" in prose.casefold(),
        mentions_angles=_ANGLES.search(text) is not None,
        numbers=frozenset(_NUMBER.findall(text.replace(",", ""))),
        variables=frozenset(letter for formula in found for letter in _VARIABLE.findall(_TEXT.sub("", formula)))
        | {letter for letter in _VARIABLE.findall(prose) if letter not in "aAI"},
        positive=_POSITIVE.search(text) is not None,
        text=prose,
    )


def _single(formula: str) -> set[str]:
    items = [_MODULUS.sub("", part) for part in parts(formula)]
    return {plain_spelling(item) for item in items if len(links(item)) == 1}


def _with_placeholders(text: str, spans: list[Formula]) -> str:
    """Replace the formulas in `text` with the placeholders `⟦0⟧`, `⟦1⟧`, ..."""
    prose, position = list[str](), 0
    for number, formula in enumerate(spans):
        prose += [text[position : formula.start], f"⟦{number}⟧"]
        position = formula.end
    return "".join([*prose, text[position:]])


def _pieces(formula: str) -> set[str]:
    """Return the formula, its list items, and the sides of each, all in `plain_spelling`."""
    found = {formula, *parts(formula)}
    found |= {_MODULUS.sub("", piece) for piece in found}
    found |= {side for piece in tuple(found) for side in sides(piece)}
    return {plain_spelling(piece) for piece in found} - {""}


_DERIVATIVE = re.compile(
    r"(?P<primed>[a-zA-Z])(?P<order>'+)(?:\([a-z]\))?"
    r"|\\frac\{?d(?P<above>[a-zA-Z])(?:\([a-z]\))?\}?\{?d[a-z]\}?|\\frac\{?d\}?\{?d[a-z]\}?(?P<behind>[a-zA-Z])(?:\([a-z]\))?"
)
_ONE_VARIABLE = re.compile(r"[a-zA-Z]|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega)")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega)(?![a-z])")
_APPLIED = re.compile(r"([a-zA-Z])\(.*\)")
_REMAINDER = frozenset(("remainder", "remainders", "residue", "mod", "modulo", "congruent", "congruence", "divided"))
_BY_MODULUS = r"(?:\(? *\\pmod|\(? *\\b?mod(?![a-z])|\\text *\{ *\(?mod *\}) *\{? *(\d+) *\}? *\)?"
_CONGRUENT = re.compile(rf"(?:(.{{1,200}}?) *\\equiv *)?(-?\d+) *{_BY_MODULUS}")
_DIVIDED = re.compile(rf"([^=]{{1,200}}?) *{_BY_MODULUS} *= *(-?\d+)")


def derivative(formula: str) -> tuple[str, int] | None:
    r"""Return the function's name and the order of `f'(x)`, `y''`, `\frac{dy}{dx}`, `\frac{d}{dx} f(x)`; else None."""
    match = _DERIVATIVE.fullmatch(plain_spelling(formula))
    if match is None:
        return None
    return (match["primed"] or match["above"] or match["behind"], len(match["order"] or "'"))


def is_requested(name: str, problem: ProblemStatement) -> bool:
    if plain_spelling(name) in problem.requested:
        return True
    derived = derivative(name)
    return derived is not None and derived in {derivative(formula) for formula in problem.requested}


def is_other_quantity(name: str, problem: ProblemStatement) -> bool:
    """Return whether `name` is a quantity, but not the requested one: `a = 7` does not answer "find $a+b$"."""
    bare = plain_spelling(name)
    if not problem.computed or is_requested(name, problem) or _is_set_equal(bare, problem):
        return False
    if _ONE_VARIABLE.fullmatch(bare):
        return any(bare in _LETTER.findall(formula) for formula in problem.formulas)
    applied = _APPLIED.fullmatch(bare)
    if applied and any(re.search(rf"(?<![a-zA-Z]){applied[1]}\(", asked) for asked in problem.computed):
        return True
    if "^{-1}" in bare:
        return "inverse" not in problem.words
    return bare in problem.formulas


def _is_set_equal(bare: str, problem: ProblemStatement) -> bool:
    """Return whether the problem states that `bare` equals the requested quantity."""
    pairs = ((bare, asked) for asked in problem.computed)
    return any(f"{one}={other}" in problem.formulas or f"{other}={one}" in problem.formulas for one, other in pairs)


def residue(answer: str, problem: ProblemStatement) -> tuple[str, str] | None:
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
    if divided or not _ONE_VARIABLE.fullmatch(left):
        known = left == "" or is_requested(left, problem) or not _LETTER.search(left)
        if not known or (left and not problem.words & _REMAINDER and not is_requested(left, problem)):
            return None
    return left, RELATIONS.sub("", value)

"""Wrong answers derived from MATH's gold answers."""

from __future__ import annotations

import re
from collections.abc import Iterator

TWICE = ("x+11, 11+x", "12x -34, -34 + 12x", r"15\frac{39}{40}, \frac{639}{40}")
"""Gold answers that state one value twice, so omitting one is not a mistake."""
_PAIR = re.compile(r"\s*(?:\\left)?\s*([(\[])([^()\[\]]*),([^()\[\],]*?)(?:\\right)?\s*([)\]])")
_UNITS = (("cm", "m"), ("inches", "feet"), ("degrees", "radians"), ("cents", "dollars"), ("\\$", "\\text{cents }"))
_SIGNS = (
    ("no root", "\\sqrt", ""), ("cube root", "\\sqrt", "\\sqrt[3]"), ("no pi", "\\pi", ""), ("conjugate", "+ ", "- "),
    ("open for closed", "\\le", "<"), ("closed for open", "<", "\\le "), ("product for quotient", "\\frac{", "{"),
)  # fmt: skip
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")


def mutants(gold: str) -> Iterator[tuple[str, str]]:
    """Pairs (mistake, wrong answer) for each mistake that this gold answer allows."""
    mutated = [*_numbers(gold), *_lists(gold), *_forms(gold), *_signs(gold)]
    yield from ((name, answer) for name, answer in mutated if _bare(answer) != _bare(gold))


def _bare(text: str) -> str:
    return re.sub(r" |\\left|\\right", "", text)


def _numbers(gold: str) -> Iterator[tuple[str, str]]:
    for match in list(re.finditer(r"\d+", gold))[:4]:
        yield "off by one", f"{gold[: match.start()]}{int(match.group()) + 1}{gold[match.end() :]}"
    plain = re.fullmatch(r"-?[\d\\].*", gold) and not re.search(r"\\text|\\\{|,|\\begin|\\left|\\pm|=", gold)
    if plain and re.search(r"[1-9a-z]", gold):
        yield "sign", gold[1:] if gold.startswith("-") else f"-({gold})"
    if re.search(r"[-+] ", gold):
        yield "inner sign", re.sub(r"([-+]) ", lambda match: "+ " if match[1] == "-" else "- ", gold, count=1)
    if fraction := _FRACTION.search(gold):
        yield "upside down", gold.replace(fraction.group(), f"\\frac{{{fraction[2]}}}{{{fraction[1]}}}")
    if gold != "0" and not re.search(r"text|,|circ|=|mbox|%", gold):
        yield "one more", f"{gold}+1"


def _lists(gold: str) -> Iterator[tuple[str, str]]:
    if pair := _PAIR.fullmatch(gold):
        opening, first, second, ending = pair.groups()
        if first.strip() != second.strip():
            yield "ends swapped", f"{opening}{second},{first}{ending}"
        # At an infinite end both brackets mean the same.
        if "infty" not in first:
            yield "other bracket", f"{'[' if opening == '(' else '('}{first},{second}{ending}"
        yield "a set", f"\\{{{first},{second}\\}}"
    elif "," in gold and not re.search(r"\d, ?\\?!?\s?\d{3}", gold) and "\\cup" not in gold and gold not in TWICE:
        yield "one too few", gold.rpartition(",")[0].removeprefix("\\{")
        yield "one too many", f"{gold},77"
    if "\\cup" in gold:
        yield "half of a union", gold.partition("\\cup")[0]


def _forms(gold: str) -> Iterator[tuple[str, str]]:
    if re.search(r"_\{?\d", gold):
        yield "no base", gold.partition("_")[0]
        yield "other base", f"{gold.partition('_')[0]}_3"
    for unit, other in _UNITS:
        if unit in gold and "\\circ" not in gold:
            yield "other unit", gold.replace(unit, other)
    if "\\begin" in gold:
        yield "a row for a column", gold.replace("\\\\", " & ")
    if gold.startswith("\\text{"):
        yield "another word", "\\text{something else}"


def _signs(gold: str) -> Iterator[tuple[str, str]]:
    if "\\left" not in gold:
        yield from ((name, gold.replace(sign, other, 1)) for name, sign, other in _SIGNS if sign in gold)
    hidden = re.sub(r"\\(?:text|mbox)\{[^{}]*\}|\\[a-z]+", lambda match: "#" * len(match[0]), gold)
    if variable := re.search(r"(?<![a-zA-Z{])[xyzabn](?![a-zA-Z{=])", hidden):
        yield "another variable", gold[: variable.start()] + "w" + gold[variable.end() :]
